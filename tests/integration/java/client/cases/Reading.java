package cases;

import static cases.Broker.DEADLINE_S;
import static cases.Broker.bytes;
import static cases.Broker.check;
import static cases.Broker.eventually;
import static cases.Broker.same;
import static cases.Broker.take;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.pulsar.client.admin.LongRunningProcessStatus.Status;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.impl.Murmur3Hash32;
import org.apache.pulsar.common.policies.data.RetentionPolicies;

/** Reading without acknowledging: readers, table views, compacted topics. */
final class Reading {
  /** A topic of a namespace that keeps what nobody has in a backlog, as readers need it. */
  private static String kept(Broker broker) throws Exception {
    String namespace = broker.namespace();
    broker.admin.namespaces().setRetention(namespace, new RetentionPolicies(-1, -1));
    return "persistent://" + namespace + "/t";
  }

  private static ReaderBuilder<String> reader(Broker broker, String topic) {
    return broker.client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.earliest);
  }

  private static List<String> all(Reader<String> reader) throws Exception {
    List<String> found = new ArrayList<>();
    while (reader.hasMessageAvailable()) {
      Message<String> message = reader.readNext(DEADLINE_S, TimeUnit.SECONDS);
      check(message != null, "a message is available and does not come");
      found.add(message.getValue());
    }
    return found;
  }

  @Case
  static void startsAtTheEarliestTheLatestOrAMessage(Broker broker) throws Exception {
    String topic = kept(broker);
    List<MessageId> ids = new ArrayList<>();
    try (Producer<String> producer = broker.texts(topic)) {
      for (int at = 0; at < 4; at++) {
        ids.add(producer.send(Integer.toString(at)));
      }
      try (Reader<String> reader = reader(broker, topic).create()) {
        same(List.of("0", "1", "2", "3"), all(reader));
        check(!reader.hasMessageAvailable(), "there is no more");
        producer.send("4");
        eventually("one more is available", reader::hasMessageAvailable);
        same(List.of("4"), all(reader));
      }
      try (Reader<String> reader = reader(broker, topic).startMessageId(MessageId.latest).create()) {
        check(!reader.hasMessageAvailable(), "nothing is after the latest");
        producer.send("5");
        same("5", reader.readNext(DEADLINE_S, TimeUnit.SECONDS).getValue());
      }
    }
    try (Reader<String> reader = reader(broker, topic).startMessageId(ids.get(1)).create()) {
      same(List.of("2", "3", "4", "5"), all(reader));
    }
    try (Reader<String> reader =
        reader(broker, topic).startMessageId(ids.get(1)).startMessageIdInclusive().create()) {
      same(List.of("1", "2", "3", "4", "5"), all(reader));
    }
    try (Reader<String> reader = reader(broker, topic).startMessageId(MessageId.latest).startMessageIdInclusive()
        .create()) {
      same(List.of("5"), all(reader));
    }
    byte[] saved = ids.get(2).toByteArray();
    try (Reader<String> reader = reader(broker, topic).startMessageId(MessageId.fromByteArray(saved)).create()) {
      same(List.of("3", "4", "5"), all(reader));
    }
    try (Reader<String> reader = broker.client.newReader(Schema.STRING).topic(topic)
        .startMessageFromRollbackDuration(1, TimeUnit.HOURS).create()) {
      same(6, all(reader).size());
    }
  }

  @Case
  static void readsAPartOfABatch(Broker broker) throws Exception {
    String topic = kept(broker);
    List<MessageId> ids = new ArrayList<>();
    try (Producer<String> producer = broker.client.newProducer(Schema.STRING).topic(topic).batchingMaxMessages(5)
        .batchingMaxPublishDelay(1, TimeUnit.HOURS).create()) {
      List<java.util.concurrent.CompletableFuture<MessageId>> sent = new ArrayList<>();
      for (int at = 0; at < 5; at++) {
        sent.add(producer.sendAsync(Integer.toString(at)));
      }
      for (var each : sent) {
        ids.add(each.get(DEADLINE_S, TimeUnit.SECONDS));
      }
    }
    try (Reader<String> reader = reader(broker, topic).startMessageId(ids.get(2)).create()) {
      same(List.of("3", "4"), all(reader));
      reader.seek(ids.get(0));
      same(List.of("1", "2", "3", "4"), all(reader));
    }
  }

  @Case
  static void seeksAndStillKnowsWhetherThereIsMore(Broker broker) throws Exception {
    String topic = kept(broker);
    broker.publish(topic, "0", "1", "2");
    try (Reader<String> reader = reader(broker, topic).create()) {
      Message<String> first = reader.readNext(DEADLINE_S, TimeUnit.SECONDS);
      reader.seek(MessageId.latest);
      check(!reader.hasMessageAvailable(), "nothing is after the latest");
      reader.seek(first.getMessageId());
      same(List.of("1", "2"), all(reader));
      reader.seek(first.getPublishTime());
      check(all(reader).size() >= 2, "a seek by time");
      reader.seek(partition -> MessageId.earliest);
      same(List.of("0", "1", "2"), all(reader));
    }
  }

  @Case
  static void readsAllPartitionsAndSeveralTopics(Broker broker) throws Exception {
    String first = kept(broker);
    broker.admin.topics().createPartitionedTopic(first, 3);
    String second = first + "-more";
    try (Producer<String> producer = broker.texts(first)) {
      for (int at = 0; at < 9; at++) {
        producer.send("x");
      }
    }
    broker.publish(second, "y");
    try (Reader<String> reader = reader(broker, first).create()) {
      same(9, all(reader).size());
    }
    try (Reader<String> reader = broker.client.newReader(Schema.STRING).topics(List.of(first, second))
        .startMessageId(MessageId.earliest).create()) {
      same(10, all(reader).size());
    }
  }

  @Case
  static void readsOneRangeOfKeysAndByAListener(Broker broker) throws Exception {
    String topic = kept(broker);
    List<String> expected = new ArrayList<>();
    try (Producer<String> producer = broker.texts(topic)) {
      for (int at = 0; at < 20; at++) {
        String key = "key-" + at;
        producer.newMessage().key(key).value(key).send();
        if (Murmur3Hash32.getInstance().makeHash(bytes(key)) % 65536 < 32768) {
          expected.add(key);
        }
      }
    }
    try (Reader<String> reader = reader(broker, topic).keyHashRange(Range.of(0, 32767)).create()) {
      List<String> found = new ArrayList<>();
      for (int at = 0; at < expected.size(); at++) {
        found.add(reader.readNext(DEADLINE_S, TimeUnit.SECONDS).getValue());
      }
      same(expected, found);
    }
    BlockingQueue<String> heard = new LinkedBlockingQueue<>();
    try (Reader<String> reader =
        reader(broker, topic).readerListener((from, message) -> heard.add(message.getValue())).create()) {
      for (int at = 0; at < 20; at++) {
        same("key-" + at, heard.poll(DEADLINE_S, TimeUnit.SECONDS));
      }
      check(reader.isConnected(), "connected");
    }
  }

  @Case
  static void readsOneRangeOfKeysOfOtherTopics(Broker broker) throws Exception {
    String compacted = kept(broker);
    List<String> last = new ArrayList<>();
    try (Producer<String> producer = broker.texts(compacted)) {
      for (int at = 0; at < 40; at++) {
        String key = "key-" + at % 20;
        producer.newMessage().key(key).value(key + "=" + at / 20).send();
        if (at >= 20 && Murmur3Hash32.getInstance().makeHash(bytes(key)) % 65536 < 32768) {
          last.add(key + "=1");
        }
      }
    }
    broker.admin.topics().triggerCompaction(compacted);
    eventually("compacted", () -> broker.admin.topics().compactionStatus(compacted).status == Status.SUCCESS);
    try (Reader<String> reader =
        reader(broker, compacted).readCompacted(true).keyHashRange(Range.of(0, 32767)).create()) {
      for (String expected : last) {
        same(expected, reader.readNext(DEADLINE_S, TimeUnit.SECONDS).getValue());
      }
    }
    String passing = broker.topic().replace("persistent://", "non-persistent://");
    try (Reader<String> low = reader(broker, passing).keyHashRange(Range.of(0, 32767)).create();
        Reader<String> high = reader(broker, passing).keyHashRange(Range.of(32768, 65535)).create();
        Producer<String> producer = broker.texts(passing)) {
      broker.awaitPermits(passing, 2);
      for (int at = 0; at < 20; at++) {
        String key = "key-" + at;
        producer.newMessage().key(key).value(key).send();
        // A topic without storage has no ranges, here as on Pulsar.
        same(key, low.readNext(DEADLINE_S, TimeUnit.SECONDS).getValue());
        same(key, high.readNext(DEADLINE_S, TimeUnit.SECONDS).getValue());
      }
    }
  }

  @Case
  static void seeksEachPartitionToAPlaceOfItsOwn(Broker broker) throws Exception {
    String topic = kept(broker);
    broker.admin.topics().createPartitionedTopic(topic, 3);
    List<MessageId> ids = new ArrayList<>();
    for (int partition = 0; partition < 3; partition++) {
      try (Producer<String> producer = broker.texts(topic + "-partition-" + partition)) {
        for (int at = 0; at < 3; at++) {
          ids.add(producer.send(partition + "." + at));
        }
      }
    }
    Function<String, Object> places = name -> name.endsWith("-0") ? MessageId.latest
        : name.endsWith("-1") ? ids.get(4) : (Object) 0L;
    try (Reader<String> reader = reader(broker, topic).create()) {
      same(9, all(reader).size());
      reader.seek(places);
      same(Set.of("1.2", "2.0", "2.1", "2.2"), Set.copyOf(all(reader)));
    }
  }

  @Case
  static void aTableViewHasTheLastValueOfEachKey(Broker broker) throws Exception {
    for (int partitions : List.of(0, 2)) {
      String topic = kept(broker);
      if (partitions > 0) {
        broker.admin.topics().createPartitionedTopic(topic, partitions);
      }
      try (Producer<String> producer = broker.texts(topic)) {
        producer.newMessage().key("a").value("1").send();
        producer.newMessage().key("b").value("2").send();
        producer.newMessage().key("a").value("3").send();
        try (TableView<String> view = broker.client.newTableView(Schema.STRING).topic(topic)
            .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create()) {
          same(Set.of(Map.entry("a", "3"), Map.entry("b", "2")), view.entrySet());
          Map<String, String> seen = new ConcurrentHashMap<>();
          view.forEachAndListen((key, value) -> seen.put(key, value == null ? "gone" : value));
          same(Map.of("a", "3", "b", "2"), seen);
          producer.newMessage().key("c").value("4").send();
          producer.newMessage().key("b").value(null).send();
          eventually("the changes", () -> "4".equals(view.get("c")) && !view.containsKey("b"));
          eventually("the listener", () -> seen.equals(Map.of("a", "3", "b", "gone", "c", "4")));
          same(2, view.size());
        }
      }
    }
  }

  @Case
  static void aCompactedTopicIsReadByItsKeys(Broker broker) throws Exception {
    String topic = kept(broker);
    try (Producer<String> producer = broker.texts(topic)) {
      for (int at = 0; at < 10; at++) {
        producer.newMessage().key("k" + at % 2).value(Integer.toString(at)).send();
      }
      producer.newMessage().key("gone").value("x").send();
      producer.newMessage().key("gone").value(null).send();
    }
    broker.admin.topics().triggerCompaction(topic);
    eventually("compaction has ended", () -> {
      String status = broker.admin.topics().compactionStatus(topic).status.name();
      check(!status.equals("ERROR"), "compaction failed");
      return status.equals("SUCCESS");
    });
    try (Reader<String> reader = reader(broker, topic).readCompacted(true).create()) {
      same(List.of("8", "9"), all(reader));
    }
    try (Consumer<String> consumer = broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("c")
        .readCompacted(true).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
      same(List.of("8", "9"), Broker.take(consumer, 2));
    }
    try (Reader<String> reader = reader(broker, topic).create()) {
      same(12, all(reader).size());
    }
  }
}
