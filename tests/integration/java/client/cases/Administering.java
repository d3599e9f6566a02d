package cases;

import static cases.Broker.bytes;
import static cases.Broker.check;
import static cases.Broker.eventually;
import static cases.Broker.receive;
import static cases.Broker.refused;
import static cases.Broker.same;

import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.BacklogQuota.BacklogQuotaType;
import org.apache.pulsar.common.policies.data.BacklogQuota.RetentionPolicy;
import org.apache.pulsar.common.policies.data.DelayedDeliveryPolicies;
import org.apache.pulsar.common.policies.data.RetentionPolicies;

/** The admin library as the cookbook on retention and expiry uses it, and what else applications do with it. */
final class Administering {
  @Case
  static void retentionIsSetReadAndRemoved(Broker broker) throws Exception {
    Namespaces namespaces = broker.admin.namespaces();
    String namespace = broker.namespace();
    same(null, namespaces.getRetention(namespace));
    for (RetentionPolicies policy : List.of(new RetentionPolicies(180, 10 * 1024), new RetentionPolicies(-1, 1024 * 1024),
        new RetentionPolicies(180, -1), new RetentionPolicies(-1, -1), new RetentionPolicies(0, 0))) {
      namespaces.setRetention(namespace, policy);
      same(policy, namespaces.getRetention(namespace));
    }
    refused(PulsarAdminException.class, () -> {
      namespaces.setRetention(namespace, new RetentionPolicies(0, 10));
      return null;
    });
    namespaces.removeRetention(namespace);
    same(null, namespaces.getRetention(namespace));
  }

  @Case
  static void aBacklogQuotaIsSetReadAndRemoved(Broker broker) throws Exception {
    Namespaces namespaces = broker.admin.namespaces();
    String namespace = broker.namespace();
    BacklogQuota size = BacklogQuota.builder().limitSize(2L << 30)
        .retentionPolicy(RetentionPolicy.producer_request_hold).build();
    BacklogQuota age = BacklogQuota.builder().limitTime(3600)
        .retentionPolicy(RetentionPolicy.consumer_backlog_eviction).build();
    namespaces.setBacklogQuota(namespace, size);
    namespaces.setBacklogQuota(namespace, age, BacklogQuotaType.message_age);
    Map<BacklogQuotaType, BacklogQuota> quotas = namespaces.getBacklogQuotaMap(namespace);
    same(2L << 30, quotas.get(BacklogQuotaType.destination_storage).getLimitSize());
    same(RetentionPolicy.producer_request_hold, quotas.get(BacklogQuotaType.destination_storage).getPolicy());
    same(3600, quotas.get(BacklogQuotaType.message_age).getLimitTime());
    namespaces.removeBacklogQuota(namespace);
    namespaces.removeBacklogQuota(namespace, BacklogQuotaType.message_age);
    same(Map.of(), namespaces.getBacklogQuotaMap(namespace));
  }

  @Case
  static void theTimeToLiveIsSetReadAndRemoved(Broker broker) throws Exception {
    Namespaces namespaces = broker.admin.namespaces();
    String namespace = broker.namespace();
    namespaces.setNamespaceMessageTTL(namespace, 120);
    same(120, namespaces.getNamespaceMessageTTL(namespace));
    namespaces.removeNamespaceMessageTTL(namespace);
    same(null, namespaces.getNamespaceMessageTTL(namespace));
  }

  @Case
  static void aBacklogIsClearedSkippedPeekedAndReset(Broker broker) throws Exception {
    String namespace = broker.namespace();
    String topic = "persistent://" + namespace + "/t";
    broker.admin.namespaces().setRetention(namespace, new RetentionPolicies(-1, -1));
    broker.store(topic, "0", "1", "2", "3");
    List<Message<byte[]>> peeked = broker.admin.topics().peekMessages(topic, "s", 2);
    same(2, peeked.size());
    same("1", new String(peeked.get(1).getData()));
    broker.admin.topics().skipMessages(topic, "s", 1);
    same(3L, broker.stats(topic, "s").getMsgBacklog());
    broker.admin.namespaces().clearNamespaceBacklog(namespace);
    eventually("the backlog is cleared", () -> broker.stats(topic, "s").getMsgBacklog() == 0);
    broker.admin.topics().resetCursor(topic, "s", MessageId.earliest);
    eventually("all is in the backlog again", () -> broker.stats(topic, "s").getMsgBacklog() == 4);
    broker.admin.topics().skipAllMessages(topic, "s");
    eventually("the backlog is cleared", () -> broker.stats(topic, "s").getMsgBacklog() == 0);
    same("2", new String(broker.admin.topics().examineMessage(topic, "earliest", 3).getData()));
  }

  @Case
  static void expiryIsAskedForAndTheMessagesAreGone(Broker broker) throws Exception {
    String topic = broker.topic();
    broker.store(topic, "0", "1");
    long begin = System.currentTimeMillis();
    eventually("two seconds have passed", () -> System.currentTimeMillis() > begin + 2_000);
    broker.admin.topics().expireMessages(topic, "s", 1);
    eventually("both are expired", () -> broker.stats(topic, "s").getMsgBacklog() == 0);
  }

  @Case
  static void delayedDeliveryIsSwitchedOff(Broker broker) throws Exception {
    String namespace = broker.namespace();
    broker.admin.namespaces().setDelayedDeliveryMessages(namespace,
        DelayedDeliveryPolicies.builder().active(false).tickTime(1000).build());
    String topic = "persistent://" + namespace + "/t";
    try (Consumer<String> consumer = broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
            .subscriptionType(org.apache.pulsar.client.api.SubscriptionType.Shared).subscribe();
        Producer<String> producer = broker.texts(topic)) {
      producer.newMessage().value("at once").deliverAfter(1, TimeUnit.HOURS).send();
      same("at once", receive(consumer).getValue());
    }
  }

  @Case
  static void topicsAndSubscriptionsAreMadeListedAndDeleted(Broker broker) throws Exception {
    String namespace = broker.namespace();
    String topic = "persistent://" + namespace + "/t";
    broker.admin.topics().createNonPartitionedTopic(topic);
    broker.admin.topics().createPartitionedTopic(topic + "s", 2);
    same(List.of(topic + "s"), broker.admin.topics().getPartitionedTopicList(namespace));
    check(broker.admin.topics().getList(namespace).contains(topic), "the topic is listed");
    broker.admin.topics().createSubscription(topic, "s", MessageId.latest);
    same(List.of("s"), broker.admin.topics().getSubscriptions(topic));
    refused(PulsarAdminException.ConflictException.class, () -> {
      broker.admin.topics().createSubscription(topic, "s", MessageId.latest);
      return null;
    });
    try (Producer<byte[]> producer = broker.client.newProducer().topic(topic).create()) {
      MessageId last = producer.send(bytes("x"));
      same(last.toString(), broker.admin.topics().getLastMessageId(topic).toString());
      same("x", new String(broker.admin.topics().getMessagesById(topic,
          ((org.apache.pulsar.client.api.MessageIdAdv) last).getLedgerId(),
          ((org.apache.pulsar.client.api.MessageIdAdv) last).getEntryId()).get(0).getData()));
    }
    broker.admin.topics().deleteSubscription(topic, "s");
    broker.admin.topics().delete(topic);
    broker.admin.topics().deletePartitionedTopic(topic + "s");
    same(List.of(), broker.admin.topics().getList(namespace));
    refused(PulsarAdminException.NotFoundException.class, () -> broker.admin.topics().getStats(topic));
    broker.admin.namespaces().deleteNamespace(namespace);
  }
}
