package cases;

import static cases.Broker.DEADLINE_S;
import static cases.Broker.check;
import static cases.Broker.receive;
import static cases.Broker.same;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageRouter;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TopicMetadata;
import org.apache.pulsar.client.impl.Murmur3Hash32;

/** Partitioned topics: which partition a message goes to, and the order within it. */
final class Routing {
  private static final List<String> KEYS = List.of("Order-3459134", "a", "key", "Zürich", "another key", "x1", "x2");

  /** Publishes 3 rounds, in each a message of every key (null for none), and returns the partitions of each key. */
  private static Map<String, Set<Integer>> partitions(
      Broker broker, String topic, ProducerBuilder<String> settings, List<String> keys) throws Exception {
    Map<String, Set<Integer>> found = new HashMap<>();
    Map<String, Integer> last = new HashMap<>();
    try (Consumer<String> consumer =
            broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscribe();
        Producer<String> producer = settings.topic(topic).create()) {
      for (int round = 0; round < 3; round++) {
        for (String key : keys) {
          var message = producer.newMessage().value(Integer.toString(round));
          (key.isEmpty() ? message : message.key(key)).send();
        }
      }
      for (int at = 0; at < 3 * keys.size(); at++) {
        Message<String> message = receive(consumer);
        String key = message.hasKey() ? message.getKey() : "";
        String partition = message.getTopicName().replaceAll(".*-partition-", "");
        found.computeIfAbsent(key, each -> new HashSet<>()).add(Integer.parseInt(partition));
        int round = Integer.parseInt(message.getValue());
        check(key.isEmpty() || round > last.getOrDefault(key, -1), key + " is out of order");
        last.put(key, round);
      }
    }
    return found;
  }

  private static ProducerBuilder<String> unbatched(Broker broker) {
    return broker.client.newProducer(Schema.STRING).enableBatching(false);
  }

  @Case
  static void withoutKeyRoundRobinUsesAllPartitions(Broker broker) throws Exception {
    String topic = broker.partitioned(3);
    same(Map.of("", Set.of(0, 1, 2)), partitions(broker, topic, unbatched(broker), List.of("", "", "")));
  }

  @Case
  static void withoutKeySinglePartitionStaysOnOne(Broker broker) throws Exception {
    String topic = broker.partitioned(5);
    Set<Integer> found = partitions(broker, topic,
        unbatched(broker).messageRoutingMode(MessageRoutingMode.SinglePartition), List.of("", "", "")).get("");
    same(1, found.size());
  }

  @Case
  static void keysGoByJavaStringHash(Broker broker) throws Exception {
    for (MessageRoutingMode mode : List.of(MessageRoutingMode.RoundRobinPartition, MessageRoutingMode.SinglePartition)) {
      String topic = broker.partitioned(4);
      Map<String, Set<Integer>> found = partitions(broker, topic, unbatched(broker).messageRoutingMode(mode), KEYS);
      for (String key : KEYS) {
        same(Set.of((key.hashCode() & Integer.MAX_VALUE) % 4), found.get(key));
      }
    }
  }

  @Case
  static void keysGoByMurmur3WhereItIsAskedFor(Broker broker) throws Exception {
    same((int) (3112179635L & Integer.MAX_VALUE),
        Murmur3Hash32.getInstance().makeHash("Order-3459134".getBytes(StandardCharsets.UTF_8)));
    String topic = broker.partitioned(4);
    Map<String, Set<Integer>> found =
        partitions(broker, topic, unbatched(broker).hashingScheme(HashingScheme.Murmur3_32Hash), KEYS);
    for (String key : KEYS) {
      int hash = Murmur3Hash32.getInstance().makeHash(key.getBytes(StandardCharsets.UTF_8));
      same(Set.of(hash % 4), found.get(key));
    }
  }

  @Case
  static void aRouterOfTheApplicationDecides(Broker broker) throws Exception {
    String topic = broker.partitioned(3);
    MessageRouter router = new MessageRouter() {
      @Override
      public int choosePartition(Message<?> message, TopicMetadata metadata) {
        return message.getKey().length() % metadata.numPartitions();
      }
    };
    Map<String, Set<Integer>> found = partitions(broker, topic, unbatched(broker)
        .messageRoutingMode(MessageRoutingMode.CustomPartition).messageRouter(router), List.of("a", "bb", "ccc"));
    same(Map.of("a", Set.of(1), "bb", Set.of(2), "ccc", Set.of(0)), found);
  }

  @Case
  static void aPartitionIsATopicAndMoreCanBeAdded(Broker broker) throws Exception {
    String topic = broker.partitioned(2);
    same(List.of(topic + "-partition-0", topic + "-partition-1"),
        broker.client.getPartitionsForTopic(topic, false).get(DEADLINE_S, TimeUnit.SECONDS));
    try (Consumer<String> one = broker.client.newConsumer(Schema.STRING).topic(topic + "-partition-1")
            .subscriptionName("s").subscribe();
        Producer<String> producer = unbatched(broker).topic(topic + "-partition-1").create()) {
      producer.send("x");
      same(topic + "-partition-1", receive(one).getTopicName());
    }
    broker.admin.topics().updatePartitionedTopic(topic, 4);
    same(4, broker.client.getPartitionsForTopic(topic, false).get(DEADLINE_S, TimeUnit.SECONDS).size());
  }
}
