package cases;

import static cases.Broker.bytes;
import static cases.Broker.check;
import static cases.Broker.receive;
import static cases.Broker.refused;
import static cases.Broker.same;

import com.google.protobuf.StringValue;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.util.List;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SchemaSerializationException;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.schema.GenericSchema;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/** Schemas: what the client registers, checks and finds again. */
final class Schemas {
  /** The first form of a record. */
  public static class Order {
    public String id;
    public int count;
  }

  /** A form that has another type for a field. */
  public static class OrderWithOtherCount {
    public String id;
    public List<String> count;
  }

  private static Order order(String id, int count) {
    Order order = new Order();
    order.id = id;
    order.count = count;
    return order;
  }

  private static Schema<GenericRecord> generic(String definition) {
    return Schema.generic(SchemaInfo.builder().name("").type(SchemaType.AVRO).schema(bytes(definition)).build());
  }

  private static <T> void roundTrip(Broker broker, Schema<T> schema, T value) throws Exception {
    String topic = broker.topic();
    try (Consumer<T> consumer = broker.client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
        Producer<T> producer = broker.client.newProducer(schema).topic(topic).create()) {
      producer.send(value);
      same(value, receive(consumer).getValue());
    }
    same(schema.getSchemaInfo().getType(), broker.admin.schemas().getSchemaInfo(topic).getType());
  }

  @Case
  static void simpleTypesComeBackAsTheyWere(Broker broker) throws Exception {
    roundTrip(broker, Schema.STRING, "Zürich");
    roundTrip(broker, Schema.INT8, (byte) -5);
    roundTrip(broker, Schema.INT16, (short) 300);
    roundTrip(broker, Schema.INT32, 70_000);
    roundTrip(broker, Schema.INT64, 1L << 40);
    roundTrip(broker, Schema.BOOL, true);
    roundTrip(broker, Schema.FLOAT, 1.5f);
    roundTrip(broker, Schema.DOUBLE, 2.25);
    roundTrip(broker, Schema.INSTANT, Instant.ofEpochSecond(1_700_000_000, 123));
    roundTrip(broker, Schema.LOCAL_DATE, LocalDate.of(2024, 2, 29));
  }

  @Case
  static void jsonAndAvroRecordsComeBackAndAreListed(Broker broker) throws Exception {
    for (Schema<Order> schema : List.of(Schema.JSON(Order.class), Schema.AVRO(Order.class))) {
      String topic = broker.topic();
      try (Consumer<Order> consumer =
              broker.client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
          Producer<Order> producer = broker.client.newProducer(schema).topic(topic).create()) {
        producer.send(order("a", 3));
        Message<Order> message = receive(consumer);
        same("a", message.getValue().id);
        same(3, message.getValue().count);
        check(message.getSchemaVersion() != null, "the message has the version of its schema");
      }
      same(schema.getSchemaInfo().getSchemaDefinition(),
          broker.admin.schemas().getSchemaInfo(topic).getSchemaDefinition());
    }
  }

  @Case
  static void aRecordMayGrowAndOldMessagesAreRead(Broker broker) throws Exception {
    String topic = broker.topic();
    String first = "{\"type\":\"record\",\"name\":\"Order\",\"fields\":[{\"name\":\"id\",\"type\":\"string\"}%s]}";
    String note = ",{\"name\":\"note\",\"type\":\"string\",\"default\":\"none\"}";
    Schema<GenericRecord> old = generic(first.formatted(""));
    Schema<GenericRecord> grown = generic(first.formatted(note));
    try (Consumer<GenericRecord> consumer =
        broker.client.newConsumer(Schema.AUTO_CONSUME()).topic(topic).subscriptionName("s").subscribe()) {
      try (Producer<GenericRecord> producer = broker.client.newProducer(old).topic(topic).create()) {
        producer.send(((GenericSchema<GenericRecord>) old).newRecordBuilder().set("id", "old").build());
      }
      try (Producer<GenericRecord> producer = broker.client.newProducer(grown).topic(topic).create()) {
        producer.send(((GenericSchema<GenericRecord>) grown).newRecordBuilder().set("id", "new").set("note", "n")
            .build());
      }
      GenericRecord before = receive(consumer).getValue();
      same("old", before.getField("id"));
      same(1, before.getFields().size());
      GenericRecord after = receive(consumer).getValue();
      same("new", after.getField("id"));
      same("n", after.getField("note"));
    }
    same(2, broker.admin.schemas().getAllSchemas(topic).size());
  }

  @Case
  static void anIncompatibleSchemaIsRefused(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Producer<Order> producer = broker.client.newProducer(Schema.JSON(Order.class)).topic(topic).create()) {
      producer.send(order("a", 1));
      refused(PulsarClientException.IncompatibleSchemaException.class,
          () -> broker.client.newProducer(Schema.JSON(OrderWithOtherCount.class)).topic(topic).create());
      refused(PulsarClientException.IncompatibleSchemaException.class,
          () -> broker.client.newProducer(Schema.STRING).topic(topic).create());
      refused(PulsarClientException.IncompatibleSchemaException.class,
          () -> broker.client.newConsumer(Schema.INT32).topic(topic).subscriptionName("s").subscribe());
    }
    broker.client.newConsumer(Schema.JSON(Order.class)).topic(topic).subscriptionName("s").subscribe().close();
    same(1, broker.admin.schemas().getAllSchemas(topic).size());
  }

  @Case
  static void keyAndValueTogetherOrApart(Broker broker) throws Exception {
    for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
      String topic = broker.topic();
      Schema<KeyValue<String, Order>> schema = Schema.KeyValue(Schema.STRING, Schema.JSON(Order.class), encoding);
      try (Consumer<KeyValue<String, Order>> consumer =
              broker.client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
          Producer<KeyValue<String, Order>> producer = broker.client.newProducer(schema).topic(topic).create()) {
        producer.send(new KeyValue<>("k", order("a", 1)));
        Message<KeyValue<String, Order>> message = receive(consumer);
        same("k", message.getValue().getKey());
        same("a", message.getValue().getValue().id);
        same(encoding == KeyValueEncodingType.SEPARATED, message.hasKey());
      }
      same(SchemaType.KEY_VALUE, broker.admin.schemas().getSchemaInfo(topic).getType());
    }
  }

  @Case
  static void autoConsumeReadsWhateverTheTopicHas(Broker broker) throws Exception {
    for (Schema<Order> schema : List.of(Schema.JSON(Order.class), Schema.AVRO(Order.class))) {
      String topic = broker.topic();
      try (Producer<Order> producer = broker.client.newProducer(schema).topic(topic).create();
          Consumer<GenericRecord> consumer =
              broker.client.newConsumer(Schema.AUTO_CONSUME()).topic(topic).subscriptionName("s").subscribe()) {
        producer.send(order("a", 3));
        GenericRecord record = receive(consumer).getValue();
        same("a", record.getField("id"));
        same(3, ((Number) record.getField("count")).intValue());
        same(schema.getSchemaInfo().getType(), record.getSchemaType());
      }
    }
  }

  @Case
  static void autoProduceChecksBytesAgainstTheTopicsSchema(Broker broker) throws Exception {
    String topic = broker.topic();
    Schema<Order> schema = Schema.JSON(Order.class);
    try (Consumer<Order> consumer = broker.client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
        Producer<byte[]> producer =
            broker.client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create()) {
      producer.send(schema.encode(order("raw", 7)));
      same("raw", receive(consumer).getValue().id);
      refused(SchemaSerializationException.class, () -> producer.send(bytes("{not json")));
    }
  }

  @Case
  static void protobufMessagesComeBackByBothSchemas(Broker broker) throws Exception {
    StringValue value = StringValue.of("from protobuf");
    roundTrip(broker, Schema.PROTOBUF_NATIVE(StringValue.class), value);
    roundTrip(broker, Schema.PROTOBUF(StringValue.class), value);
  }

  @Case
  static void oneProducerSendsSeveralSchemas(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<Order> consumer =
            broker.client.newConsumer(Schema.JSON(Order.class)).topic(topic).subscriptionName("s").subscribe();
        Producer<byte[]> producer = broker.client.newProducer().topic(topic).create()) {
      producer.newMessage(Schema.JSON(Order.class)).value(order("typed", 1)).send();
      same("typed", receive(consumer).getValue().id);
    }
  }

  @Case
  static void bytesNeedNoSchema(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<byte[]> consumer = broker.client.newConsumer(Schema.BYTES).topic(topic).subscriptionName("s")
            .subscribe();
        Producer<byte[]> producer = broker.client.newProducer(Schema.BYTES).topic(topic).create()) {
      producer.send(bytes("raw"));
      same("raw", new String(receive(consumer).getValue(), StandardCharsets.UTF_8));
    }
  }

  @Case
  static void theSchemaCanBeGivenAndReadByTheAdminLibrary(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.admin.topics().createNonPartitionedTopic(topic);
    broker.admin.schemas().createSchema(topic, Schema.JSON(Order.class).getSchemaInfo());
    try (Producer<Order> producer = broker.client.newProducer(Schema.JSON(Order.class)).topic(topic).create();
        TableView<Order> view = broker.client.newTableView(Schema.JSON(Order.class)).topic(topic).create()) {
      producer.newMessage().key("k").value(order("in view", 1)).send();
      Broker.eventually("the view has it", () -> view.get("k") != null && view.get("k").id.equals("in view"));
    }
    same(0L, broker.admin.schemas().getSchemaInfoWithVersion(topic).getVersion());
    broker.admin.schemas().deleteSchema(topic);
    refused(PulsarAdminException.NotFoundException.class, () -> broker.admin.schemas().getSchemaInfo(topic));
  }

  @Case
  static void aStrategyDecidesWhatIsCompatible(Broker broker) throws Exception {
    String namespace = broker.namespace();
    broker.admin.namespaces().setSchemaCompatibilityStrategy(namespace, SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE);
    String topic = "persistent://" + namespace + "/t";
    broker.client.newProducer(Schema.JSON(Order.class)).topic(topic).create().close();
    broker.client.newProducer(Schema.JSON(OrderWithOtherCount.class)).topic(topic).create().close();
    same(2, broker.admin.schemas().getAllSchemas(topic).size());
    try (Reader<Order> reader = broker.client.newReader(Schema.JSON(Order.class)).topic(topic)
        .startMessageId(MessageId.earliest).create()) {
      check(!reader.hasMessageAvailable(), "nothing was sent");
    }
  }
}
