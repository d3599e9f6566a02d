package cases;

import static cases.Broker.bytes;

import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Sends numbers in bursts, so that many are in flight, while a test does something to the broker, until its input ends:
 * {@code InFlight SERVICE-URL TOPIC}. Prints a line for each receipt.
 */
final class InFlight {
  private static final int WINDOW = 1000;
  private static final int BURST = 200;
  private static final int SIZE = 50;
  private static volatile boolean ended;

  public static void main(String[] arguments) throws Exception {
    PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).operationTimeout(3, TimeUnit.SECONDS).build();
    Producer<byte[]> producer = client.newProducer().topic(arguments[1]).producerName("p").enableBatching(false)
        .sendTimeout(0, TimeUnit.SECONDS).maxPendingMessages(WINDOW).blockIfQueueFull(true).create();
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
    String padding = " " + ".".repeat(SIZE);
    for (long number = 0; !ended; number++) {
      long sent = number;
      producer.sendAsync(bytes(sent + padding)).whenComplete((id, failure) -> {
        if (failure != null) {
          failure.printStackTrace();
          System.exit(1);
        }
        System.out.println("sent " + sent);
      });
      if (sent % BURST == 0) {
        Thread.sleep(20);
      }
    }
    producer.flush();
    System.exit(0);
  }
}
