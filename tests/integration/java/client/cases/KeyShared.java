package cases;

import static cases.Broker.bytes;
import static cases.Broker.check;
import static cases.Broker.nothingFor;
import static cases.Broker.receive;
import static cases.Broker.refused;
import static cases.Broker.same;
import static cases.Broker.shares;
import static cases.Broker.take;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.Murmur3Hash32;

/** Key_Shared subscriptions: which consumer has which key. */
final class KeyShared {
  private static Consumer<String> consumer(Broker broker, String topic, KeySharedPolicy policy) throws Exception {
    return broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
        .subscriptionType(SubscriptionType.Key_Shared).keySharedPolicy(policy).subscribe();
  }

  /** Publishes some messages of each key and returns which of the consumers got which keys. */
  private static List<Set<String>> keys(Broker broker, String topic, List<Consumer<String>> consumers, int count)
      throws Exception {
    try (Producer<String> producer = broker.texts(topic)) {
      for (int round = 0; round < 3; round++) {
        for (int at = 0; at < count; at++) {
          producer.newMessage().key("key-" + at).value(Integer.toString(round)).send();
        }
      }
    }
    List<Set<String>> found = new ArrayList<>();
    for (List<Message<String>> share : shares(3 * count, consumers)) {
      Set<String> own = new HashSet<>();
      Map<String, Integer> last = new HashMap<>();
      for (Message<String> message : share) {
        own.add(message.getKey());
        int round = Integer.parseInt(message.getValue());
        check(round > last.getOrDefault(message.getKey(), -1), message.getKey() + " is out of order");
        last.put(message.getKey(), round);
      }
      for (Set<String> others : found) {
        check(others.stream().noneMatch(own::contains), "a key went to two consumers");
      }
      found.add(own);
    }
    return found;
  }

  @Case
  static void autoSplitGivesEachKeyToOneConsumer(Broker broker) throws Exception {
    String topic = broker.topic();
    KeySharedPolicy policy = KeySharedPolicy.autoSplitHashRange();
    try (Consumer<String> one = consumer(broker, topic, policy);
        Consumer<String> two = consumer(broker, topic, policy)) {
      List<Set<String>> found = keys(broker, topic, List.of(one, two), 30);
      check(!found.get(0).isEmpty() && !found.get(1).isEmpty(), "one consumer got all keys");
      one.close();
      same(30, keys(broker, topic, List.of(two), 30).get(0).size());
    }
  }

  @Case
  static void stickyConsumersHaveTheRangesTheyName(Broker broker) throws Exception {
    String topic = broker.topic();
    KeySharedPolicy first = KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 16383), Range.of(32768, 49151));
    KeySharedPolicy second = KeySharedPolicy.stickyHashRange().ranges(Range.of(16384, 32767), Range.of(49152, 65535));
    try (Consumer<String> one = consumer(broker, topic, first);
        Consumer<String> two = consumer(broker, topic, second);
        Producer<String> producer = broker.texts(topic)) {
      producer.newMessage().key("Order-3459134").value("index 6067").send();
      same("index 6067", receive(one).getValue());
      List<Set<String>> found = keys(broker, topic, List.of(one, two), 20);
      for (int at = 0; at < 20; at++) {
        int slot = Murmur3Hash32.getInstance().makeHash(bytes("key-" + at)) % 65536;
        same(slot / 16384 % 2 == 0, found.get(0).contains("key-" + at));
      }
    }
  }

  @Case
  static void stickyRangesThatOverlapAreRefused(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> one = consumer(broker, topic, KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 65535)))) {
      refused(PulsarClientException.ConsumerAssignException.class,
          () -> consumer(broker, topic, KeySharedPolicy.stickyHashRange().ranges(Range.of(100, 200))));
      same(10, keys(broker, topic, List.of(one), 10).get(0).size());
    }
    refused(IllegalArgumentException.class,
        () -> consumer(broker, topic, KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 10), Range.of(5, 20))));
  }

  @Case
  static void aNewConsumerWaitsForWhatOthersHoldOfItsKeys(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> one = consumer(broker, topic, KeySharedPolicy.autoSplitHashRange())) {
      try (Producer<String> producer = broker.texts(topic)) {
        for (int at = 0; at < 20; at++) {
          producer.newMessage().key("key-" + at).value("0").send();
        }
        List<Message<String>> held = new ArrayList<>();
        for (int at = 0; at < 20; at++) {
          held.add(receive(one));
        }
        try (Consumer<String> two = consumer(broker, topic, KeySharedPolicy.autoSplitHashRange())) {
          for (int at = 0; at < 20; at++) {
            producer.newMessage().key("key-" + at).value("1").send();
          }
          nothingFor(two);
          for (Message<String> message : held) {
            one.acknowledge(message);
          }
          check(!shares(20, List.of(two, one)).get(0).isEmpty(), "the new consumer got nothing");
        }
      }
    }
  }

  @Case
  static void outOfOrderDeliveryIsAllowedWhereItIsAskedFor(Broker broker) throws Exception {
    String topic = broker.topic();
    KeySharedPolicy policy = KeySharedPolicy.autoSplitHashRange().setAllowOutOfOrderDelivery(true);
    try (Consumer<String> one = consumer(broker, topic, policy);
        Producer<String> producer = broker.texts(topic)) {
      for (int at = 0; at < 20; at++) {
        producer.newMessage().key("key-" + at).value("0").send();
      }
      for (int at = 0; at < 20; at++) {
        receive(one);
      }
      try (Consumer<String> two = consumer(broker, topic, policy)) {
        for (int at = 0; at < 20; at++) {
          producer.newMessage().key("key-" + at).value("1").send();
        }
        same("1", receive(two).getValue());
      }
    }
  }

  @Case
  static void aBatchForEachKeyGoesToTheConsumerOfTheKey(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> one =
            consumer(broker, topic, KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 32767)));
        Consumer<String> two =
            consumer(broker, topic, KeySharedPolicy.stickyHashRange().ranges(Range.of(32768, 65535)));
        Producer<String> producer = broker.client.newProducer(Schema.STRING).topic(topic)
            .batcherBuilder(BatcherBuilder.KEY_BASED).batchingMaxMessages(20)
            .batchingMaxPublishDelay(1, java.util.concurrent.TimeUnit.HOURS).create()) {
      for (int at = 0; at < 20; at++) {
        producer.newMessage().key("key-" + at % 4).value("x").sendAsync();
      }
      producer.flush();
      same(4L, broker.admin.topics().getInternalStats(topic).numberOfEntries);
      int expected = 0;
      for (int at = 0; at < 4; at++) {
        expected += Murmur3Hash32.getInstance().makeHash(bytes("key-" + at)) % 65536 < 32768 ? 5 : 0;
      }
      same(expected, shares(20, List.of(one, two)).get(0).size());
    }
  }

  @Case
  static void anOrderingKeyCountsMoreThanTheKey(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> low = consumer(broker, topic, KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 16383)));
        Consumer<String> high =
            consumer(broker, topic, KeySharedPolicy.stickyHashRange().ranges(Range.of(16384, 65535)));
        Producer<String> producer = broker.texts(topic)) {
      for (int at = 0; at < 8; at++) {
        producer.newMessage().key("key-" + at).orderingKey(bytes("Order-3459134")).value("v" + at).send();
      }
      same("v0", receive(low).getValue());
      same(7, take(low, 7).size());
      nothingFor(high);
    }
  }

  @Case
  static void messagesWithoutKeyAllArriveOnce(Broker broker) throws Exception {
    String topic = broker.topic();
    KeySharedPolicy policy = KeySharedPolicy.autoSplitHashRange();
    try (Consumer<String> one = consumer(broker, topic, policy);
        Consumer<String> two = consumer(broker, topic, policy)) {
      broker.publish(topic, "0", "1", "2", "3", "4", "5");
      shares(6, List.of(one, two));
    }
  }
}
