package cases;

import static cases.Broker.bytes;

import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.impl.auth.oauth2.AuthenticationFactoryOAuth2;

/**
 * Sends numbers and receives them while a test replaces everything that secures the broker, until its input ends:
 * {@code Rotating SERVICE-URL TRUSTED TOPIC TOKEN-FILE}, or {@code … TOPIC CERTIFICATE KEY}, or
 * {@code … TOPIC ISSUER ISSUER-TRUSTED CREDENTIALS}. Prints a line for each token of a file, receipt and message.
 */
final class Rotating {
  private static volatile boolean ended;

  private static synchronized void say(String kind, long number) {
    System.out.println(kind + " " + number);
    System.out.flush();
  }

  private static String token(String file) {
    try {
      String token = Files.readString(Path.of(file)).strip();
      say("asked", 0);
      return token;
    } catch (java.io.IOException unreadable) {
      throw new java.io.UncheckedIOException(unreadable);
    }
  }

  public static void main(String[] arguments) throws Exception {
    String topic = arguments[2];
    Authentication authentication = switch (arguments.length) {
      case 4 -> AuthenticationFactory.token(() -> token(arguments[3]));
      case 5 -> AuthenticationFactory.TLS(arguments[3], arguments[4]);
      default -> AuthenticationFactoryOAuth2.clientCredentialsBuilder()
          .issuerUrl(URI.create(arguments[3]).toURL())
          .trustCertsFilePath(arguments[4])
          .credentialsUrl(Path.of(arguments[5]).toUri().toURL())
          .audience("heliograph")
          .build();
    };
    PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).tlsTrustCertsFilePath(arguments[1])
        .enableTlsHostnameVerification(true).autoCertRefreshSeconds(1).authentication(authentication).build();
    Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
    Producer<byte[]> producer =
        client.newProducer().topic(topic).producerName("p").sendTimeout(0, TimeUnit.SECONDS).create();
    Thread input = new Thread(() -> {
      try {
        System.in.transferTo(java.io.OutputStream.nullOutputStream());
      } catch (java.io.IOException closed) {
        // It has ended, too.
      }
      ended = true;
    });
    input.setDaemon(true);
    input.start();
    AtomicLong received = new AtomicLong();
    Thread receiving = new Thread(() -> {
      try {
        while (true) {
          Message<byte[]> message = consumer.receive();
          consumer.acknowledge(message);
          long number = Long.parseLong(new String(message.getValue(), StandardCharsets.UTF_8));
          say("received", number);
          received.compareAndSet(number, number + 1);
        }
      } catch (Exception failure) {
        failure.printStackTrace();
        System.exit(1);
      }
    });
    receiving.setDaemon(true);
    receiving.start();
    long sent = 0;
    for (; !ended; sent++) {
      producer.send(bytes(Long.toString(sent)));
      say("sent", sent);
      Thread.sleep(1);
    }
    while (received.get() < sent) {
      Thread.sleep(10);
    }
    System.exit(0);
  }
}
