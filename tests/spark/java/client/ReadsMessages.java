import java.util.Base64;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;

/** Prints the messages of a topic (the second argument), so many of them (the third), a line each. */
public class ReadsMessages {
  public static void main(String[] arguments) throws Exception {
    try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        Reader<byte[]> reader = client.newReader().topic(arguments[1]).startMessageId(MessageId.earliest).create()) {
      for (int left = Integer.parseInt(arguments[2]); left > 0; left--) {
        Message<byte[]> message = reader.readNext(60, TimeUnit.SECONDS);
        byte[] value = message.getValue();
        System.out.println(String.join(" ", value == null ? "null" : encoded(value),
            message.hasKey() ? encoded(message.getKeyBytes()) : "null", String.valueOf(message.hasBase64EncodedKey()),
            message.hasOrderingKey() ? encoded(message.getOrderingKey()) : "null",
            String.valueOf(message.getEventTime()), String.valueOf(message.getSequenceId()),
            encoded(new TreeMap<>(message.getProperties()).toString().getBytes("UTF-8"))));
      }
    }
  }

  private static String encoded(byte[] bytes) {
    return "=" + Base64.getEncoder().encodeToString(bytes);
  }
}
