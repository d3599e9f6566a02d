package cases;

import static cases.Broker.DEADLINE_S;
import static cases.Broker.check;
import static cases.Broker.eventually;
import static cases.Broker.nothingFor;
import static cases.Broker.receive;
import static cases.Broker.refused;
import static cases.Broker.same;
import static cases.Broker.take;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.RegexSubscriptionMode;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;

/** Receiving: ways to receive and to acknowledge, subscription types and modes, several topics at once. */
final class Consuming {
  private static ConsumerBuilder<String> consumer(Broker broker, String... topics) {
    return broker.client.newConsumer(Schema.STRING).topic(topics).subscriptionName("s")
        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
  }

  @Case
  static void receivesAtOnceLaterOrManyTogether(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.store(topic, "0", "1", "2", "3", "4");
    try (Consumer<String> consumer = consumer(broker, topic)
        .batchReceivePolicy(BatchReceivePolicy.builder().maxNumMessages(3).timeout(DEADLINE_S, TimeUnit.SECONDS).build())
        .subscribe()) {
      same("0", receive(consumer).getValue());
      same("1", consumer.receiveAsync().get(DEADLINE_S, TimeUnit.SECONDS).getValue());
      Messages<String> rest = consumer.batchReceive();
      same(3, rest.size());
      List<String> texts = new ArrayList<>();
      rest.forEach(each -> texts.add(each.getValue()));
      same(List.of("2", "3", "4"), texts);
      consumer.acknowledge(rest);
      CompletableFuture<Message<String>> next = consumer.receiveAsync();
      check(!next.isDone(), "nothing is there to receive");
      broker.publish(topic, "5");
      same("5", next.get(DEADLINE_S, TimeUnit.SECONDS).getValue());
    }
  }

  @Case
  static void aListenerGetsEachMessage(Broker broker) throws Exception {
    String topic = broker.topic();
    BlockingQueue<String> heard = new LinkedBlockingQueue<>();
    try (Consumer<String> consumer = consumer(broker, topic).messageListener((from, message) -> {
      heard.add(message.getValue());
      from.acknowledgeAsync(message);
    }).subscribe()) {
      broker.publish(topic, "a", "b");
      same("a", heard.poll(DEADLINE_S, TimeUnit.SECONDS));
      same("b", heard.poll(DEADLINE_S, TimeUnit.SECONDS));
      eventually("both acknowledged", () -> broker.stats(topic, "s").getMsgBacklog() == 0);
      consumer.pause();
      consumer.resume();
      broker.publish(topic, "c");
      same("c", heard.poll(DEADLINE_S, TimeUnit.SECONDS));
    }
  }

  @Case
  static void theQueueOfTheReceiverLimitsWhatIsSentAhead(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> first = consumer(broker, topic).subscriptionType(SubscriptionType.Shared)
            .receiverQueueSize(2).subscribe()) {
      broker.publish(topic, "0", "1", "2", "3", "4", "5");
      try (Consumer<String> second = consumer(broker, topic).subscriptionType(SubscriptionType.Shared)
          .receiverQueueSize(1).subscribe()) {
        take(second, 4);
        nothingFor(second);
        take(first, 2);
        nothingFor(first);
      }
    }
  }

  @Case
  static void acknowledgesOneByOneOrAListOrById(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.store(topic, "1", "2", "3", "4", "5", "6");
    List<Message<String>> got = new ArrayList<>();
    try (Consumer<String> consumer = consumer(broker, topic).subscriptionType(SubscriptionType.Shared).subscribe()) {
      for (int at = 0; at < 6; at++) {
        got.add(receive(consumer));
      }
      consumer.acknowledge(got.get(3));
    }
    try (Consumer<String> consumer = consumer(broker, topic).subscriptionType(SubscriptionType.Shared).subscribe()) {
      Set<String> again = new HashSet<>();
      List<MessageId> ids = new ArrayList<>();
      for (int at = 0; at < 5; at++) {
        Message<String> message = receive(consumer);
        again.add(message.getValue());
        ids.add(message.getMessageId());
      }
      same(Set.of("1", "2", "3", "5", "6"), again);
      consumer.acknowledge(ids.get(0));
      consumer.acknowledge(ids.subList(1, 5));
      eventually("all acknowledged", () -> broker.stats(topic, "s").getMsgBacklog() == 0);
    }
  }

  @Case
  static void acknowledgesCumulativelyButNotOnShared(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.store(topic, "0", "1", "2", "3");
    for (SubscriptionType type : List.of(SubscriptionType.Shared, SubscriptionType.Key_Shared)) {
      broker.admin.topics().createSubscription(topic, type.name(), MessageId.earliest);
    }
    broker.publish(topic, "4");
    try (Consumer<String> consumer = consumer(broker, topic).subscribe()) {
      receive(consumer);
      receive(consumer);
      consumer.acknowledgeCumulative(receive(consumer));
      eventually("two left", () -> broker.stats(topic, "s").getMsgBacklog() == 2);
    }
    try (Consumer<String> consumer = consumer(broker, topic).subscribe()) {
      same("3", receive(consumer).getValue());
    }
    for (SubscriptionType type : List.of(SubscriptionType.Shared, SubscriptionType.Key_Shared)) {
      try (Consumer<String> consumer =
          consumer(broker, topic).subscriptionName(type.name()).subscriptionType(type).subscribe()) {
        Message<String> message = receive(consumer);
        refused(PulsarClientException.InvalidConfigurationException.class, () -> {
          consumer.acknowledgeCumulative(message);
          return null;
        });
      }
    }
  }

  @Case
  static void exclusiveIsTheDefaultAndRefusesASecond(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> consumer = consumer(broker, topic).subscribe()) {
      refused(PulsarClientException.ConsumerBusyException.class, () -> consumer(broker, topic).subscribe());
      refused(PulsarClientException.ConsumerBusyException.class,
          () -> consumer(broker, topic).subscriptionType(SubscriptionType.Shared).subscribe());
    }
    // Without consumers, the type is open again.
    consumer(broker, topic).subscriptionType(SubscriptionType.Shared).subscribe().close();
  }

  @Case
  static void failoverPassesToTheNextInLine(Broker broker) throws Exception {
    String topic = broker.topic();
    Set<String> told = ConcurrentHashMap.newKeySet();
    ConsumerEventListener listener = new ConsumerEventListener() {
      @Override
      public void becameActive(Consumer<?> consumer, int partition) {
        told.add(consumer.getConsumerName());
      }

      @Override
      public void becameInactive(Consumer<?> consumer, int partition) {
        told.remove(consumer.getConsumerName());
      }
    };
    ConsumerBuilder<String> both = consumer(broker, topic).subscriptionType(SubscriptionType.Failover)
        .consumerEventListener(listener);
    try (Consumer<String> first = both.clone().subscribe(); Consumer<String> second = both.clone().subscribe()) {
      // Pulsar chooses by the consumers' names and passes on a second later. Messages of that second it may deliver late
      // or out of order, so they wait until the one it has chosen knows.
      eventually("the active one knows", () -> told.equals(Set.of(broker.stats(topic, "s").getActiveConsumerName())));
      Consumer<String> active = told.contains(first.getConsumerName()) ? first : second;
      Consumer<String> next = active == first ? second : first;
      broker.publish(topic, "1", "2");
      same(List.of("1", "2"), List.of(receive(active).getValue(), receive(active).getValue()));
      nothingFor(next);
      active.close();
      same(List.of("1", "2"), List.of(receive(next).getValue(), receive(next).getValue()));
    }
  }

  @Case
  static void failoverTellsWhoIsActive(Broker broker) throws Exception {
    String topic = broker.partitioned(3);
    BlockingQueue<String> events = new LinkedBlockingQueue<>();
    ConsumerEventListener listener = new ConsumerEventListener() {
      @Override
      public void becameActive(Consumer<?> consumer, int partition) {
        events.add(consumer.getConsumerName() + " active " + partition);
      }

      @Override
      public void becameInactive(Consumer<?> consumer, int partition) {
        events.add(consumer.getConsumerName() + " inactive " + partition);
      }
    };
    try (Consumer<String> preferred = consumer(broker, topic).subscriptionType(SubscriptionType.Failover)
            .consumerName("b").priorityLevel(0).consumerEventListener(listener).subscribe();
        Consumer<String> standby = consumer(broker, topic).subscriptionType(SubscriptionType.Failover)
            .consumerName("a").priorityLevel(1).subscribe()) {
      Set<String> active = new HashSet<>();
      while (active.size() < 3) {
        String event = events.poll(DEADLINE_S, TimeUnit.SECONDS);
        check(event != null, "found only " + active);
        if (event.startsWith("b active")) {
          active.add(event);
        }
      }
      same(Set.of("b active 0", "b active 1", "b active 2"), active);
      try (Producer<String> producer = broker.texts(topic)) {
        for (int at = 0; at < 6; at++) {
          producer.send("x");
        }
      }
      same(6, take(preferred, 6).size());
      nothingFor(standby);
    }
  }

  @Case
  static void sharedGoesRoundAndWhatALeavingConsumerHeldIsSentToOthers(Broker broker) throws Exception {
    String topic = broker.topic();
    Consumer<String> one = consumer(broker, topic).subscriptionType(SubscriptionType.Shared).subscribe();
    try (Consumer<String> two = consumer(broker, topic).subscriptionType(SubscriptionType.Shared).subscribe()) {
      for (int at = 0; at < 10; at++) {
        broker.publish(topic, Integer.toString(at));
      }
      Set<String> held = new HashSet<>();
      Set<String> acknowledged = new HashSet<>();
      eventually("ten messages", () -> {
        Message<String> message;
        while ((message = one.receive(50, TimeUnit.MILLISECONDS)) != null) {
          held.add(message.getValue());
        }
        while ((message = two.receive(50, TimeUnit.MILLISECONDS)) != null) {
          two.acknowledge(message);
          acknowledged.add(message.getValue());
        }
        return held.size() + acknowledged.size() >= 10;
      });
      check(!held.isEmpty() && !acknowledged.isEmpty(), "one consumer got everything");
      one.close();
      same(held, new HashSet<>(take(two, held.size())));
    }
  }

  @Case
  static void aNonDurableSubscriptionKeepsNothing(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.store(topic, "before");
    try (Consumer<String> durable = consumer(broker, topic).subscribe()) {
      try (Consumer<String> consumer = broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("passing")
          .subscriptionMode(SubscriptionMode.NonDurable).subscribe()) {
        broker.publish(topic, "meanwhile");
        same("meanwhile", receive(consumer).getValue());
        check(!broker.stats(topic, "passing").isDurable() && broker.stats(topic, "s").isDurable(), "durability");
      }
      eventually("it is gone", () -> broker.admin.topics().getSubscriptions(topic).equals(List.of("s")));
      same(List.of("before", "meanwhile"), take(durable, 2));
    }
  }

  @Case
  static void aDurableSubscriptionGoesOnWhereItWas(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscriptionProperties(
        Map.of("owner", "orders")).subscribe().close();
    broker.publish(topic, "1", "2");
    try (Consumer<String> consumer = broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
        .subscriptionMode(SubscriptionMode.Durable).subscribe()) {
      same(List.of("1"), take(consumer, 1));
    }
    same(Map.of("owner", "orders"), broker.admin.topics().getSubscriptionProperties(topic, "s"));
    try (Consumer<String> consumer = consumer(broker, topic).subscribe()) {
      same(List.of("2"), take(consumer, 1));
      consumer.unsubscribe();
    }
    same(List.of(), broker.admin.topics().getSubscriptions(topic));
  }

  @Case
  static void startsAtTheEndUnlessTheEarliestIsAskedFor(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.store(topic, "old");
    try (Consumer<String> latest =
            broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("latest").subscribe();
        Consumer<String> earliest = consumer(broker, topic).subscribe()) {
      broker.publish(topic, "new");
      same(List.of("new"), take(latest, 1));
      same(List.of("old", "new"), take(earliest, 2));
    }
  }

  @Case
  static void seeksByIdByTimeAndByFunction(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> consumer = consumer(broker, topic).subscribe()) {
      broker.publish(topic, "0", "1");
      eventually("the clock moves on", new java.util.concurrent.Callable<>() {
        private final long begin = System.currentTimeMillis();

        @Override
        public Boolean call() {
          return System.currentTimeMillis() > begin + 50;
        }
      });
      broker.publish(topic, "2", "3");
      List<Message<String>> got = new ArrayList<>();
      for (int at = 0; at < 4; at++) {
        got.add(receive(consumer));
      }
      consumer.acknowledgeCumulative(got.get(3));
      consumer.seek(got.get(1).getMessageId());
      same("2", receive(consumer).getValue());
      consumer.seek(got.get(2).getPublishTime());
      same(List.of("2", "3"), take(consumer, 2));
      consumer.seek(MessageId.earliest);
      same("0", receive(consumer).getValue());
      consumer.seek(partition -> got.get(2).getMessageId());
      same("3", receive(consumer).getValue());
      consumer.seek(partition -> got.get(2).getPublishTime());
      same("2", receive(consumer).getValue());
      consumer.seek(MessageId.latest);
      nothingFor(consumer);
      same(got.get(3).getMessageId().toString(), consumer.getLastMessageIds().get(0).toString());
      MessageId second = got.get(1).getMessageId();
      consumer.close();
      try (Consumer<String> inclusive = consumer(broker, topic).startMessageIdInclusive().subscribe()) {
        inclusive.seek(second);
        same("1", receive(inclusive).getValue());
      }
    }
  }

  @Case
  static void theEndOfATerminatedTopicIsSeen(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.store(topic, "last");
    CountDownLatch ended = new CountDownLatch(1);
    try (Consumer<String> consumer = consumer(broker, topic).messageListener(
        new org.apache.pulsar.client.api.MessageListener<>() {
          @Override
          public void received(Consumer<String> from, Message<String> message) {
            from.acknowledgeAsync(message);
          }

          @Override
          public void reachedEndOfTopic(Consumer<String> of) {
            ended.countDown();
          }
        }).subscribe()) {
      broker.admin.topics().terminateTopic(topic);
      check(ended.await(DEADLINE_S, TimeUnit.SECONDS), "the end was not seen");
      check(consumer.hasReachedEndOfTopic(), "the end");
      refused(PulsarClientException.TopicTerminatedException.class, () -> broker.texts(topic).send("more"));
    }
  }

  @Case
  static void subscribesToAListOfTopics(Broker broker) throws Exception {
    List<String> topics = List.of(broker.topic(), broker.partitioned(2), broker.topic());
    try (Consumer<String> consumer = broker.client.newConsumer(Schema.STRING).topics(topics).subscriptionName("s")
        .subscribe()) {
      for (String topic : topics) {
        broker.publish(topic, topic, topic);
      }
      for (int round = 0; round < 2; round++) {
        Map<String, Integer> counts = new HashMap<>();
        for (int at = 0; at < 6; at++) {
          counts.merge(receive(consumer).getValue(), 1, Integer::sum);
        }
        same(Map.of(topics.get(0), 2, topics.get(1), 2, topics.get(2), 2), counts);
        consumer.seek(MessageId.earliest);
      }
    }
  }

  @Case
  static void aPatternFindsTopicsOfANamespaceAndLaterOnes(Broker broker) throws Exception {
    String namespace = broker.namespace();
    String begin = "persistent://" + namespace + "/";
    for (String name : List.of("foo-1", "foo-2", "foo-3", "bar")) {
      broker.admin.topics().createNonPartitionedTopic(begin + name);
    }
    broker.admin.topics().createPartitionedTopic(begin + "foo-parts", 3);
    try (Consumer<byte[]> all = broker.client.newConsumer().topicsPattern(Pattern.compile(begin + ".*"))
            .subscriptionName("all").subscribe();
        Consumer<byte[]> some = broker.client.newConsumer().topicsPattern(Pattern.compile(begin + "foo.*"))
            .subscriptionName("some").patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS)
            .subscriptionTopicsMode(RegexSubscriptionMode.PersistentOnly).subscribe()) {
      for (String name : List.of("foo-1", "foo-2", "foo-3", "foo-parts", "bar")) {
        broker.publish(begin + name, name);
      }
      same(Set.of("foo-1", "foo-2", "foo-3", "foo-parts", "bar"), texts(take(all, 5)));
      same(Set.of("foo-1", "foo-2", "foo-3", "foo-parts"), texts(take(some, 4)));
      nothingFor(some);
      broker.publish(begin + "foo-late", "early");
      eventually("the new topic has the subscription",
          () -> broker.admin.topics().getSubscriptions(begin + "foo-late").contains("some"));
      broker.publish(begin + "foo-late", "late");
      Set<String> got = new HashSet<>();
      while (!got.contains("late")) {
        got.addAll(texts(take(some, 1)));
      }
    }
  }

  private static Set<String> texts(List<byte[]> values) {
    Set<String> found = new HashSet<>();
    values.forEach(each -> found.add(new String(each)));
    return found;
  }

  @Case
  static void theExampleOfTheClientsIntroduction(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Producer<byte[]> producer = broker.client.newProducer().topic(topic).create();
        Consumer<byte[]> consumer = broker.client.newConsumer().topic(topic).subscriptionName("my-subscription")
            .ackTimeout(10, TimeUnit.SECONDS).subscriptionType(SubscriptionType.Exclusive).subscribe()) {
      producer.send("My message".getBytes());
      for (boolean worked = false; !worked; ) {
        Message<byte[]> message = receive(consumer);
        try {
          same("My message", new String(message.getData()));
          consumer.acknowledge(message);
          worked = true;
        } catch (PulsarClientException failed) {
          consumer.negativeAcknowledge(message);
        }
      }
      producer.newMessage().key("my-message-key").value("my-async-message".getBytes())
          .property("my-key", "my-value").property("my-other-key", "my-other-value").send();
      same("my-other-value", receive(consumer).getProperty("my-other-key"));
    }
  }
}
