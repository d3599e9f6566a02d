package cases;

import static cases.Broker.DEADLINE_S;
import static cases.Broker.bytes;
import static cases.Broker.check;
import static cases.Broker.eventually;
import static cases.Broker.receive;
import static cases.Broker.refused;
import static cases.Broker.same;
import static cases.Broker.take;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/** Sending: access modes, sending modes, everything a message can carry, batches, delays. */
final class Producing {
  @Case
  static void sharedAccessIsTheDefault(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Producer<String> one = broker.texts(topic); Producer<String> two = broker.texts(topic)) {
      one.send("a");
      two.send("b");
      check(!one.getProducerName().equals(two.getProducerName()), "both producers are called " + one.getProducerName());
    }
  }

  @Case
  static void exclusiveAccessRefusesAnotherProducer(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Producer<byte[]> alone =
        broker.client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create()) {
      refused(PulsarClientException.ProducerFencedException.class,
          () -> broker.client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create());
      refused(PulsarClientException.ProducerBusyException.class, () -> broker.texts(topic));
      alone.send(bytes("still the one"));
    }
    broker.texts(topic).close();
  }

  @Case
  static void exclusiveWithFencingRemovesTheOthers(Broker broker) throws Exception {
    String topic = broker.topic();
    Producer<String> old = broker.client.newProducer(Schema.STRING).topic(topic).sendTimeout(2, TimeUnit.SECONDS)
        .create();
    try (Producer<byte[]> alone =
        broker.client.newProducer().topic(topic).accessMode(ProducerAccessMode.ExclusiveWithFencing).create()) {
      alone.send(bytes("new"));
      refused(PulsarClientException.class, () -> old.send("old"));
      alone.send(bytes("new again"));
    }
    old.close();
  }

  @Case
  static void waitForExclusiveIsPendingUntilTheOtherLeaves(Broker broker) throws Exception {
    String topic = broker.topic();
    Producer<byte[]> leader =
        broker.client.newProducer().topic(topic).accessMode(ProducerAccessMode.WaitForExclusive).create();
    CompletableFuture<Producer<byte[]>> waiting =
        broker.client.newProducer().topic(topic).accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
    for (int at = 0; at < 20; at++) {
      leader.send(bytes("leading"));
    }
    check(!waiting.isDone(), "two leaders at once");
    leader.close();
    try (Producer<byte[]> next = waiting.get(DEADLINE_S, TimeUnit.SECONDS)) {
      next.send(bytes("my turn"));
    }
  }

  @Case
  static void sendsOneAfterTheOtherOrAllAtOnce(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> consumer =
            broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscribe();
        Producer<String> producer = broker.client.newProducer(Schema.STRING).topic(topic).create()) {
      MessageId first = producer.send("0");
      List<CompletableFuture<MessageId>> sent = new ArrayList<>();
      for (int at = 1; at <= 50; at++) {
        sent.add(producer.sendAsync(Integer.toString(at)));
      }
      producer.flush();
      MessageId last = first;
      for (CompletableFuture<MessageId> each : sent) {
        check(each.isDone(), "flush returned before the receipts");
        check(each.get().compareTo(last) > 0, each.get() + " is not after " + last);
        last = each.get();
      }
      List<String> texts = take(consumer, 51);
      for (int at = 0; at <= 50; at++) {
        same(Integer.toString(at), texts.get(at));
      }
    }
  }

  @Case
  static void aFullQueueOfTheProducerFailsOrBlocks(Broker broker) throws Exception {
    try (Producer<byte[]> producer = broker.client.newProducer().topic(broker.topic()).maxPendingMessages(2)
        .batchingMaxPublishDelay(1, TimeUnit.HOURS).blockIfQueueFull(false).create()) {
      CompletableFuture<MessageId> first = producer.sendAsync(bytes("1"));
      CompletableFuture<MessageId> second = producer.sendAsync(bytes("2"));
      refused(PulsarClientException.ProducerQueueIsFullError.class, () -> producer.sendAsync(bytes("3")).get());
      producer.flush();
      first.get();
      second.get();
    }
    try (Producer<byte[]> blocking = broker.client.newProducer().topic(broker.topic()).maxPendingMessages(1)
        .blockIfQueueFull(true).create()) {
      CompletableFuture<MessageId> last = null;
      for (int at = 0; at < 20; at++) {
        last = blocking.sendAsync(bytes("waits for room"));
      }
      last.get(DEADLINE_S, TimeUnit.SECONDS);
    }
  }

  @Case
  static void aMessageCarriesAllThatTheBuilderTakes(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<byte[]> consumer = broker.client.newConsumer().topic(topic).subscriptionName("s").subscribe();
        Producer<byte[]> producer = broker.client.newProducer().topic(topic).producerName("sender").enableBatching(false)
            .property("team", "orders").initialSequenceId(41).create()) {
      long before = System.currentTimeMillis();
      same(41L, producer.getLastSequenceId());
      MessageId id = producer.newMessage().key("k").orderingKey(bytes("order")).value(bytes("v"))
          .property("a", "1").properties(Map.of("b", "2", "empty", "")).eventTime(1_234).sequenceId(77).send();
      same(77L, producer.getLastSequenceId());
      Message<byte[]> message = receive(consumer);
      same(id, message.getMessageId());
      same("v", new String(message.getData()));
      same("v", new String(message.getValue()));
      same(1, message.size());
      same("k", message.getKey());
      check(message.hasKey() && !message.hasBase64EncodedKey(), "the key is a text");
      same("order", new String(message.getOrderingKey()));
      same(Map.of("a", "1", "b", "2", "empty", ""), message.getProperties());
      check(message.hasProperty("a") && !message.hasProperty("c"), "properties");
      same(1_234L, message.getEventTime());
      same(77L, message.getSequenceId());
      same("sender", message.getProducerName());
      same(topic, message.getTopicName());
      same(0, message.getRedeliveryCount());
      check(message.getPublishTime() >= before - 1000, "published at " + message.getPublishTime());

      byte[] binary = {0, 1, -1, (byte) 0x80};
      producer.newMessage().keyBytes(binary).value(bytes("w")).send();
      message = receive(consumer);
      check(message.hasBase64EncodedKey(), "bytes as key come as base64");
      same("AAH/gA==", message.getKey());
      check(java.util.Arrays.equals(binary, message.getKeyBytes()), "the bytes of the key");
      same(0L, message.getEventTime());
      same(42L, message.getSequenceId());
      check(!message.hasOrderingKey() && message.getProperties().isEmpty(), "nothing is left from the last message");

      producer.newMessage().value(bytes("conf")).disableReplication().loadConf(Map.of(
          TypedMessageBuilder.CONF_KEY, "from-conf", TypedMessageBuilder.CONF_EVENT_TIME, 5L,
          TypedMessageBuilder.CONF_PROPERTIES, Map.of("c", "3"))).send();
      message = receive(consumer);
      same("from-conf", message.getKey());
      same(5L, message.getEventTime());
      same(Map.of("c", "3"), message.getProperties());
    }
  }

  @Case
  static void anEmptyValueAndNoValueArrive(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> consumer =
            broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscribe();
        Producer<String> producer = broker.texts(topic)) {
      producer.send("");
      producer.newMessage().key("gone").value(null).send();
      same("", receive(consumer).getValue());
      Message<String> removal = receive(consumer);
      same(null, removal.getValue());
      same("gone", removal.getKey());
    }
  }

  @Case
  static void aTopicWithoutTenantIsInPublicDefault(Broker broker) throws Exception {
    String local = "java-" + System.nanoTime();
    try (Consumer<byte[]> consumer =
            broker.client.newConsumer().topic("persistent://public/default/" + local).subscriptionName("s").subscribe();
        Producer<byte[]> producer = broker.client.newProducer().topic(local).create()) {
      producer.send(bytes("x"));
      same("persistent://public/default/" + local, receive(consumer).getTopicName());
    }
    broker.admin.topics().delete(local, true);
  }

  @Case
  static void aBatchIsOneEntryAndDelayedMessagesAreNotInIt(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> consumer = broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
            .subscriptionType(SubscriptionType.Shared).subscribe();
        Producer<String> producer = broker.client.newProducer(Schema.STRING).topic(topic).batchingMaxMessages(10)
            .batchingMaxPublishDelay(1, TimeUnit.HOURS).create()) {
      List<CompletableFuture<MessageId>> sent = new ArrayList<>();
      for (int at = 0; at < 10; at++) {
        sent.add(producer.sendAsync("b" + at));
      }
      for (CompletableFuture<MessageId> each : sent) {
        each.get(DEADLINE_S, TimeUnit.SECONDS);
      }
      same(1L, broker.admin.topics().getInternalStats(topic).numberOfEntries);
      CompletableFuture<MessageId> later =
          producer.newMessage().value("later").deliverAfter(1, TimeUnit.MILLISECONDS).sendAsync();
      later.get(DEADLINE_S, TimeUnit.SECONDS);
      same(2L, broker.admin.topics().getInternalStats(topic).numberOfEntries);
      same(11, take(consumer, 11).size());
    }
  }

  @Case
  static void deliverAfterAndDeliverAtDelayOnSharedOnly(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> shared = broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("shared")
            .subscriptionType(SubscriptionType.Shared).subscribe();
        Consumer<String> exclusive =
            broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("exclusive").subscribe();
        Producer<String> producer = broker.client.newProducer(Schema.STRING).topic(topic).create()) {
      long begin = System.currentTimeMillis();
      producer.newMessage().value("after").deliverAfter(8L, TimeUnit.SECONDS).send();
      producer.newMessage().value("at").deliverAt(begin + 4_000).send();
      producer.send("now");
      same(List.of("after", "at", "now"), take(exclusive, 3));
      same(List.of("now", "at", "after"), take(shared, 3));
      // A broker may be early by its tick of a second.
      check(System.currentTimeMillis() >= begin + 7_000, "delivered before its time");
    }
  }

  @Case
  static void aMessageOverTheLimitIsRefusedAndTheProducerGoesOn(Broker broker) throws Exception {
    try (Producer<byte[]> producer = broker.client.newProducer().topic(broker.topic()).enableBatching(false).create()) {
      refused(PulsarClientException.InvalidMessageException.class, () -> producer.send(new byte[5 * 1024 * 1024 + 1]));
      producer.send(new byte[5 * 1024 * 1024 - 1024]);
    }
  }

  @Case
  static void duplicatesAreDroppedByTheirSequenceId(Broker broker) throws Exception {
    String namespace = broker.namespace();
    broker.admin.namespaces().setDeduplicationStatus(namespace, true);
    String topic = "persistent://" + namespace + "/t";
    try (Consumer<String> consumer =
        broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscribe()) {
      for (int attempt = 0; attempt < 2; attempt++) {
        try (Producer<String> producer = broker.client.newProducer(Schema.STRING).topic(topic).producerName("p")
            .sendTimeout(0, TimeUnit.SECONDS).create()) {
          same(attempt == 0 ? -1L : 2L, producer.getLastSequenceId());
          for (long id = 1; id <= 2; id++) {
            producer.newMessage().value("m" + id).sequenceId(id).send();
          }
        }
      }
      broker.publish(topic, "end");
      same(List.of("m1", "m2", "end"), take(consumer, 3));
    }
  }

  @Case
  static void aProducerMakesTheFirstSubscription(Broker broker) throws Exception {
    String topic = broker.topic();
    // The client offers this for its own dead letters.
    try (Producer<byte[]> producer = ((org.apache.pulsar.client.impl.ProducerBuilderImpl<byte[]>)
        broker.client.newProducer().topic(topic)).initialSubscriptionName("first").create()) {
      producer.send(bytes("kept"));
    }
    same(List.of("first"), broker.admin.topics().getSubscriptions(topic));
    try (Consumer<byte[]> consumer = broker.client.newConsumer().topic(topic).subscriptionName("first")
        .subscriptionInitialPosition(SubscriptionInitialPosition.Latest).subscribe()) {
      same("kept", new String(receive(consumer).getValue()));
    }
  }

  @Case
  static void aNonPersistentTopicDeliversToThoseWhoAreThere(Broker broker) throws Exception {
    String topic = broker.topic().replace("persistent", "non-persistent");
    try (Producer<byte[]> producer = broker.client.newProducer().topic(topic).create()) {
      producer.send(bytes("nobody hears"));
      for (SubscriptionType type : SubscriptionType.values()) {
        try (Consumer<byte[]> consumer = broker.client.newConsumer().topic(topic)
            .subscriptionName("my-subscription-name").subscriptionType(type).subscribe()) {
          broker.awaitPermits(topic, 1);
          producer.newMessage().key("k").value(bytes(type.name())).send();
          same(type.name(), new String(receive(consumer).getValue()));
        }
      }
    }
    eventually("no consumers", () -> broker.admin.topics().getStats(topic).getSubscriptions().values().stream()
        .allMatch(each -> each.getConsumers().isEmpty()));
  }
}
