import java.util.Scanner;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;

/** Reads topics with the Java client when a line of stdin asks for it; see benchmarks/read_requests.py. */
public final class TopicReader {
    private static final int WAITS_S = 60;

    public static void main(String[] arguments) throws Exception {
        int queue = Integer.parseInt(arguments[1]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                Scanner lines = new Scanner(System.in)) {
            System.out.println("ready");
            while (lines.hasNextLine()) {
                String[] asked = lines.nextLine().split(" ");
                System.out.println(read(client, asked[0], Integer.parseInt(asked[1]), queue));
            }
        }
    }

    private static String read(PulsarClient client, String topic, int messages, int queue) throws Exception {
        long began = System.nanoTime();
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest)
                .receiverQueueSize(queue).create()) {
            long first = 0;
            long bytes = 0;
            int seen = 0;
            while (seen < messages) {
                Message<byte[]> message = reader.readNext(WAITS_S, TimeUnit.SECONDS);
                if (message == null) {
                    break;
                }
                if (seen == 0) {
                    first = System.nanoTime();
                }
                bytes += message.getValue().length;
                seen++;
            }
            long ended = System.nanoTime();
            if (reader.hasMessageAvailable()) {
                seen++;
            }
            return String.format("{\"messages\": %d, \"payload_bytes\": %d, \"whole_s\": %.6f, \"from_first_s\": %.6f}",
                    seen, bytes, (ended - began) / 1e9, (ended - first) / 1e9);
        }
    }
}
