import java.io.ByteArrayOutputStream;
import java.util.List;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;

/** Sends messages as Pulsar's own client encodes them, to topics whose names begin with the second argument. */
public class SendsRecords {
  private final PulsarClient client;
  private final String prefix;

  private SendsRecords(PulsarClient client, String prefix) {
    this.client = client;
    this.prefix = prefix;
  }

  public static void main(String[] arguments) throws Exception {
    try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
      SendsRecords sends = new SendsRecords(client, arguments[1]);
      sends.unions();
    }
  }

  private <T> Producer<T> to(String topic, Schema<T> schema) throws Exception {
    return client.newProducer(schema).topic(prefix + topic).enableBatching(false).create();
  }

  private void unions() throws Exception {
    org.apache.avro.Schema inner = org.apache.avro.SchemaBuilder.record("Inner").namespace("of.java").fields()
        .requiredInt("n").endRecord();
    org.apache.avro.Schema avro = org.apache.avro.SchemaBuilder.record("Row").fields().name("u").type()
        .unionOf().nullType().and().intType().and().longType().and().stringType().and().type(inner).and()
        .array().items().stringType().endUnion().nullDefault().endRecord();
    GenericRecord nested = new GenericData.Record(inner);
    nested.put("n", 5);
    try (Producer<byte[]> producer = to("unions", Schema.NATIVE_AVRO(avro))) {
      for (Object value : new Object[] {7, 7L, "text", nested, List.of("a", "b"), null}) {
        GenericRecord row = new GenericData.Record(avro);
        row.put("u", value);
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
        new GenericDatumWriter<GenericRecord>(avro).write(row, encoder);
        encoder.flush();
        producer.send(bytes.toByteArray());
      }
    }
  }
}
