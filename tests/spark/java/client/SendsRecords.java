import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.Field;
import com.google.protobuf.Option;
import com.google.protobuf.SourceContext;
import com.google.protobuf.Type;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.sql.Time;
import java.time.Instant;
import java.time.LocalTime;
import java.util.List;
import java.util.Map;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.GenericRecordBuilder;
import org.apache.pulsar.client.api.schema.GenericSchema;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

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
      for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
        sends.keysAndValues(encoding);
        sends.keysAndValuesOfTwoVersions(encoding);
      }
      sends.timesOfDay();
      sends.protobuf();
    }
  }

  private <T> Producer<T> to(String topic, Schema<T> schema) throws Exception {
    return client.newProducer(schema).topic(prefix + topic).enableBatching(false).create();
  }

  public static class Order {
    public String id;
    public int count;
  }

  private void keysAndValues(KeyValueEncodingType encoding) throws Exception {
    Order order = new Order();
    order.id = "a";
    order.count = 7;
    try (Producer<KeyValue<Long, Order>> producer = to("longs-" + encoding,
        Schema.KeyValue(Schema.INT64, Schema.JSON(Order.class), encoding))) {
      producer.send(new KeyValue<>(-5L, order));
      producer.send(new KeyValue<>(5L, null));
      producer.send(new KeyValue<>(null, order));
      producer.send(null);
    }
    try (Producer<KeyValue<Order, Instant>> producer = to("orders-" + encoding,
        Schema.KeyValue(Schema.AVRO(Order.class), Schema.INSTANT, encoding))) {
      producer.send(new KeyValue<>(order, Instant.ofEpochSecond(1, 5_000)));
    }
  }

  private void keysAndValuesOfTwoVersions(KeyValueEncodingType encoding) throws Exception {
    String definition = "{\"type\":\"record\",\"name\":\"V\",\"fields\":[{\"name\":\"id\",\"type\":\"int\"}%s]}";
    for (String more : List.of("", ",{\"name\":\"more\",\"type\":\"string\",\"default\":\"none\"}")) {
      GenericSchema<org.apache.pulsar.client.api.schema.GenericRecord> value = Schema.generic(SchemaInfo.builder()
          .name("V").type(SchemaType.AVRO).schema(definition.formatted(more).getBytes(StandardCharsets.UTF_8))
          .properties(Map.of()).build());
      try (Producer<KeyValue<String, org.apache.pulsar.client.api.schema.GenericRecord>> producer =
          to("versions-" + encoding, Schema.KeyValue(Schema.STRING, value, encoding))) {
        GenericRecordBuilder record = value.newRecordBuilder().set("id", 5);
        producer.send(new KeyValue<>("k", (more.isEmpty() ? record : record.set("more", "text")).build()));
      }
    }
  }

  private void timesOfDay() throws Exception {
    try (Producer<Time> producer = to("times", Schema.TIME)) {
      for (Time time : new Time[] {new Time(45_000_123), new Time(-1), null}) {
        producer.send(time);
      }
    }
    try (Producer<LocalTime> producer = to("local-times", Schema.LOCAL_TIME)) {
      LocalTime noon = LocalTime.of(12, 30, 0, 123_456_789);
      for (LocalTime time : new LocalTime[] {LocalTime.MIDNIGHT, noon, LocalTime.MAX, null}) {
        producer.send(time);
      }
    }
  }

  private void protobuf() throws Exception {
    Field field = Field.newBuilder().setKind(Field.Kind.TYPE_INT32).setNumber(7).setName("f").addOptions(Option
        .newBuilder().setName("o").setValue(Any.newBuilder().setValue(ByteString.copyFromUtf8("bytes")))).build();
    Type type = Type.newBuilder().setName("a type").addFields(field).addOneofs("x").addOneofs("y")
        .setSourceContext(SourceContext.newBuilder().setFileName("a.proto")).setSyntaxValue(17).build();
    try (Producer<Type> producer = to("protobuf", Schema.PROTOBUF_NATIVE(Type.class))) {
      producer.send(type);
      producer.send(Type.getDefaultInstance());
    }
    try (Producer<Type> producer = to("protobuf-as-avro", Schema.PROTOBUF(Type.class))) {
      producer.send(type);
    }
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
