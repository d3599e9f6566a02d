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
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.RedeliveryBackoff;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.MultiplierRedeliveryBackoff;

/** What failed comes again: negative acknowledgement, timeouts, backoff, retry and dead letter topics. */
final class Redelivering {
  private static ConsumerBuilder<String> consumer(Broker broker, String topic) {
    return broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
        .subscriptionType(SubscriptionType.Shared).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
  }

  @Case
  static void aNegativeAcknowledgementBringsOneMessageAgain(Broker broker) throws Exception {
    for (SubscriptionType type : SubscriptionType.values()) {
      String topic = broker.topic();
      broker.store(topic, "good", "bad");
      try (Consumer<String> consumer = consumer(broker, topic).subscriptionType(type)
          .negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS).subscribe()) {
        consumer.acknowledge(receive(consumer));
        Message<String> message = receive(consumer);
        consumer.negativeAcknowledge(message);
        Message<String> again = receive(consumer);
        same("bad", again.getValue());
        same(message.getMessageId(), again.getMessageId());
        if (type == SubscriptionType.Shared || type == SubscriptionType.Key_Shared) {
          same(1, again.getRedeliveryCount());
        }
        consumer.acknowledge(again);
        nothingFor(consumer);
      }
    }
  }

  @Case
  static void aNegativeAcknowledgementBringsItsWholeBatch(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> consumer = consumer(broker, topic).enableBatchIndexAcknowledgment(false)
            .negativeAckRedeliveryDelay(1, TimeUnit.SECONDS).subscribe();
        Producer<String> producer = broker.client.newProducer(Schema.STRING).topic(topic).batchingMaxMessages(3)
            .batchingMaxPublishDelay(1, TimeUnit.HOURS).create()) {
      for (int at = 0; at < 3; at++) {
        producer.sendAsync("m" + at);
      }
      List<Message<String>> got = new ArrayList<>();
      for (int at = 0; at < 3; at++) {
        got.add(receive(consumer));
      }
      consumer.negativeAcknowledge(got.get(1));
      same(Set.of("m0", "m1", "m2"), new HashSet<>(take(consumer, 3)));
    }
  }

  @Case
  static void backoffAfterNegativeAcknowledgementsGrows(Broker broker) throws Exception {
    RedeliveryBackoff texts = MultiplierRedeliveryBackoff.builder().minDelayMs(1000).maxDelayMs(60 * 1000).build();
    List<Long> delays = new ArrayList<>();
    for (int count = 0; count < 8; count++) {
      delays.add(texts.next(count) / 1000);
    }
    same(List.of(1L, 2L, 4L, 8L, 16L, 32L, 60L, 60L), delays);

    String topic = broker.topic();
    List<Integer> counts = new ArrayList<>();
    List<Integer> asked = new ArrayList<>();
    try (Consumer<String> consumer = consumer(broker, topic).negativeAckRedeliveryBackoff(count -> {
      asked.add(count);
      return MultiplierRedeliveryBackoff.builder().minDelayMs(50).maxDelayMs(400).build().next(count);
    }).subscribe()) {
      broker.publish(topic, "x");
      for (int at = 0; at < 6; at++) {
        Message<String> message = receive(consumer);
        counts.add(message.getRedeliveryCount());
        consumer.negativeAcknowledge(message);
      }
    }
    same(List.of(0, 1, 2, 3, 4, 5), counts);
    same(List.of(0, 1, 2, 3, 4, 5), asked);
  }

  @Case
  static void theAcknowledgementTimeoutBringsMessagesAgain(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.store(topic, "done", "late");
    try (Consumer<String> consumer = consumer(broker, topic).ackTimeout(4, TimeUnit.SECONDS)
        .ackTimeoutTickTime(500, TimeUnit.MILLISECONDS).subscribe()) {
      consumer.acknowledge(receive(consumer));
      same("late", receive(consumer).getValue());
      Message<String> again = receive(consumer);
      same("late", again.getValue());
      same(1, again.getRedeliveryCount());
      consumer.acknowledge(again);
    }
  }

  @Case
  static void backoffIsAddedToTheAcknowledgementTimeout(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.store(topic, "x");
    List<Integer> asked = new ArrayList<>();
    try (Consumer<String> consumer = consumer(broker, topic).ackTimeout(1, TimeUnit.SECONDS)
        .ackTimeoutTickTime(100, TimeUnit.MILLISECONDS).ackTimeoutRedeliveryBackoff(count -> {
          asked.add(count);
          return 200L << count;
        }).subscribe()) {
      for (int at = 0; at < 3; at++) {
        same(at, receive(consumer).getRedeliveryCount());
      }
    }
    check(asked.containsAll(List.of(0, 1)), "asked for the delays of " + asked);
  }

  @Case
  static void withoutTimeoutOnlyALeavingConsumerGivesBack(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.store(topic, "x");
    Consumer<String> first = consumer(broker, topic).subscribe();
    try (Consumer<String> second = consumer(broker, topic).subscribe()) {
      boolean[] bySecond = {false};
      eventually("one of them has it", () -> first.receive(50, TimeUnit.MILLISECONDS) != null
          || (bySecond[0] = second.receive(50, TimeUnit.MILLISECONDS) != null));
      if (bySecond[0]) {
        nothingFor(first);
        second.close();
        same("x", receive(first).getValue());
      } else {
        nothingFor(second);
        first.close();
        same("x", receive(second).getValue());
      }
    } finally {
      first.close();
    }
  }

  @Case
  static void theDefaultRetryTopicRunsIntoTheDefaultDeadLetterTopic(Broker broker) throws Exception {
    String topic = broker.topic();
    String retry = topic + "-s-RETRY";
    String dead = topic + "-s-DLQ";
    try (Consumer<String> consumer = consumer(broker, topic).enableRetry(true)
            .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe();
        Consumer<String> letters = broker.client.newConsumer(Schema.STRING).topic(dead).subscriptionName("dead")
            .subscribe()) {
      String id;
      try (Producer<String> producer = broker.texts(topic)) {
        id = producer.newMessage().key("k").property("own", "kept").value("x").send().toString();
      }
      for (int times = 0; times <= 2; times++) {
        Message<String> message = receive(consumer);
        same("x", message.getValue());
        same("k", message.getKey());
        same("kept", message.getProperty("own"));
        if (times == 0) {
          same(Map.of("own", "kept"), message.getProperties());
        } else {
          same(retry, message.getTopicName());
          same(topic, message.getProperty("REAL_TOPIC"));
          same(id, message.getProperty("ORIGIN_MESSAGE_ID"));
          same(Integer.toString(times), message.getProperty("RECONSUMETIMES"));
          same("300", message.getProperty("DELAY_TIME"));
          same("value-" + (times - 1), message.getProperty("custom-key-1"));
        }
        Map<String, String> customProperties = new HashMap<>();
        customProperties.put("custom-key-1", "value-" + times);
        customProperties.put("custom-key-2", "custom-value-2");
        consumer.reconsumeLater(message, customProperties, 300, TimeUnit.MILLISECONDS);
      }
      Message<String> message = receive(letters);
      same("x", message.getValue());
      same("k", message.getKey());
      same(topic, message.getProperty("REAL_TOPIC"));
      same(id, message.getProperty("ORIGIN_MESSAGE_ID"));
      same("kept", message.getProperty("own"));
      nothingFor(consumer);
      eventually("nothing is left", () -> broker.stats(topic, "s").getMsgBacklog() == 0
          && broker.stats(retry, "s").getMsgBacklog() == 0);
    }
    // The names of long ago, one for all topics with such a subscription, are not used.
    Set<String> names = new HashSet<>(
        broker.admin.topics().getList(topic.replace("persistent://", "").replaceAll("/[^/]*$", "")));
    check(names.containsAll(Set.of(topic, retry, dead)), "found " + names);
    String old = topic.replaceAll("/[^/]*$", "/s-");
    check(!names.contains(old + "RETRY") && !names.contains(old + "DLQ"), "found " + names);
  }

  @Case
  static void theRetryTopicAndTheDeadLetterTopicHaveTheNamesThatAreGiven(Broker broker) throws Exception {
    String topic = broker.topic();
    String retry = topic + "-again";
    String dead = topic + "-dead";
    try (Consumer<String> consumer = consumer(broker, topic).enableRetry(true).deadLetterPolicy(DeadLetterPolicy
        .builder().maxRedeliverCount(1).retryLetterTopic(retry).deadLetterTopic(dead)
        .initialSubscriptionName("init-sub").build()).subscribe()) {
      broker.publish(topic, "x");
      consumer.reconsumeLater(receive(consumer), 100, TimeUnit.MILLISECONDS);
      Message<String> again = receive(consumer);
      same(retry, again.getTopicName());
      consumer.reconsumeLater(again, 100, TimeUnit.MILLISECONDS);
      eventually("the dead letter topic has its subscription", () ->
          broker.admin.topics().getList(topic.replace("persistent://", "").replaceAll("/[^/]*$", "")).contains(dead)
              && broker.admin.topics().getSubscriptions(dead).equals(List.of("init-sub")));
    }
    try (Consumer<String> letters =
        broker.client.newConsumer(Schema.STRING).topic(dead).subscriptionName("init-sub").subscribe()) {
      same("x", receive(letters).getValue());
    }
  }

  @Case
  static void laterIsRefusedWithoutRetry(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.store(topic, "x");
    try (Consumer<String> consumer = consumer(broker, topic).subscribe()) {
      Message<String> message = receive(consumer);
      refused(org.apache.pulsar.client.api.PulsarClientException.class, () -> {
        consumer.reconsumeLater(message, 1, TimeUnit.SECONDS);
        return null;
      });
    }
  }

  @Case
  static void negativeAcknowledgementsAndTimeoutsEndInTheDeadLetterTopic(Broker broker) throws Exception {
    for (SubscriptionType type : List.of(SubscriptionType.Shared, SubscriptionType.Key_Shared)) {
      for (boolean timeout : List.of(false, true)) {
        String topic = broker.topic();
        ConsumerBuilder<String> builder = consumer(broker, topic).subscriptionType(type)
            .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build());
        if (timeout) {
          builder.ackTimeout(1, TimeUnit.SECONDS).ackTimeoutTickTime(200, TimeUnit.MILLISECONDS);
        } else {
          builder.negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS);
        }
        try (Consumer<String> letters = broker.client.newConsumer(Schema.STRING).topic(topic + "-s-DLQ")
                .subscriptionName("dead").subscribe();
            Consumer<String> consumer = builder.subscribe();
            Producer<String> producer = broker.texts(topic)) {
          producer.newMessage().key("k").value("bad").send();
          for (int times = 0; times <= 2; times++) {
            Message<String> message = receive(consumer);
            same(times, message.getRedeliveryCount());
            if (!timeout) {
              consumer.negativeAcknowledge(message);
            }
          }
          // A consumer sends a dead letter when it asks for messages.
          AtomicReference<Message<String>> found = new AtomicReference<>();
          eventually(type + (timeout ? " timeout" : " nack") + ": a dead letter", () -> {
            Message<String> more = consumer.receive(100, TimeUnit.MILLISECONDS);
            check(more == null, "came once more: " + more);
            found.set(letters.receive(100, TimeUnit.MILLISECONDS));
            return found.get() != null;
          });
          Message<String> letter = found.get();
          same("bad", letter.getValue());
          same("k", letter.getKey());
          same(topic, letter.getProperty("REAL_TOPIC"));
          eventually("acknowledged", () -> broker.stats(topic, "s").getMsgBacklog() == 0);
        }
      }
    }
  }
}
