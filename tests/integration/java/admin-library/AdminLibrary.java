import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.impl.BatchMessageIdImpl;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.TenantInfo;

/**
 * Calls Pulsar's admin library as programs do: the bodies it sends, and the answers it has to read, are those of its
 * release. Arguments: the broker's HTTP URL and a topic, tenant/namespace/name, with ten messages in subscription s.
 *
 * <p>Prints a line a call: its name, a tab, what it returned, or the exception it ended with.
 */
public final class AdminLibrary {
  private AdminLibrary() {}

  private interface Call {
    Object run() throws Exception;
  }

  private interface Change {
    void run() throws Exception;
  }

  private static void get(String name, Call call) {
    String outcome;
    try {
      outcome = String.valueOf(call.run());
    } catch (Exception problem) {
      outcome = "failed: " + problem;
    }
    System.out.println(name + "\t" + outcome.replace('\n', ' '));
  }

  private static void change(String name, Change change) {
    get(name, () -> {
      change.run();
      return "done";
    });
  }

  private static BacklogQuota quota(long bytes, int seconds) {
    return BacklogQuota.builder()
        .limitSize(bytes)
        .limitTime(seconds)
        .retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception)
        .build();
  }

  public static void main(String[] arguments) throws Exception {
    PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[0]).build();
    Topics topics = admin.topics();
    String namespace = arguments[1].substring(0, arguments[1].lastIndexOf('/'));
    String topic = "persistent://" + arguments[1];
    String parts = topic + "-parts";
    MessageIdImpl last = (MessageIdImpl) topics.getLastMessageId(topic);
    long ledger = last.getLedgerId();

    change("retention", () -> admin.namespaces().setRetention(namespace, new RetentionPolicies(-1, -1)));
    get("get retention", () -> admin.namespaces().getRetention(namespace).getRetentionSizeInMB());
    change("quota", () -> admin.namespaces().setBacklogQuota(namespace, quota(1 << 30, -1)));
    change("age quota", () -> admin.namespaces().setBacklogQuota(
        namespace, quota(-1, 3600), BacklogQuota.BacklogQuotaType.message_age));
    get("get quotas", () -> admin.namespaces().getBacklogQuotaMap(namespace).size());
    change("ttl", () -> admin.namespaces().setNamespaceMessageTTL(namespace, 3600));
    get("get ttl", () -> admin.namespaces().getNamespaceMessageTTL(namespace));
    get("get policies", () -> admin.namespaces().getPolicies(namespace).message_ttl_in_seconds);
    change("topic ttl", () -> admin.topicPolicies().setMessageTTL(topic, 1800));
    get("get topic ttl", () -> admin.topicPolicies().getMessageTTL(topic, true));
    change("topic retention", () -> admin.topicPolicies().setRetention(topic, new RetentionPolicies(-1, 4096)));
    get("get topic retention", () -> admin.topicPolicies().getRetention(topic, true).getRetentionSizeInMB());
    change("topic quota", () -> admin.topicPolicies().setBacklogQuota(topic, quota(1 << 20, -1)));
    get("get topic quota", () -> admin.topicPolicies().getBacklogQuotaMap(topic, true).size());

    get("last", () -> last.getEntryId());
    get("peek", () -> texts(topics.peekMessages(topic, "s", 3)));
    get("by id", () -> texts(topics.getMessagesById(topic, ledger, 4)));
    get("examine", () -> new String(topics.examineMessage(topic, "earliest", 2).getData()));
    get("by time", () -> topics.getMessageIdByTimestamp(topic, 0).toString().endsWith(":0:-1"));
    get("size", () -> topics.getBacklogSizeByMessageId(topic, last));
    change("create", () -> topics.createSubscription(topic, "early", MessageId.earliest, false, Map.of("a", "b")));
    change("create in", () -> topics.createSubscription(topic, "mid", new MessageIdImpl(ledger, 6, -1)));
    get("properties", () -> topics.getSubscriptionProperties(topic, "early"));
    get("subscriptions", () -> topics.getSubscriptions(topic).size());
    get("backlog of mid", () -> topics.getStats(topic).getSubscriptions().get("mid").getMsgBacklog());
    change("reset in", () -> topics.resetCursor(topic, "s", new MessageIdImpl(ledger, 6, -1)));
    change("reset behind", () -> topics.resetCursor(topic, "s", new MessageIdImpl(ledger, 6, -1), true));
    get("analyze", () -> topics.analyzeSubscriptionBacklog(topic, "s", Optional.empty()).getMessages());
    change("reset in batch", () -> topics.resetCursor(topic, "s", new BatchMessageIdImpl(ledger, 2, -1, 0)));
    change("expire to", () -> topics.expireMessages(topic, "s", new MessageIdImpl(ledger, 3, -1), false));
    get("analyze from", () -> topics.analyzeSubscriptionBacklog(
        topic, "s", Optional.of(new MessageIdImpl(ledger, 8, -1))).getMessages());
    get("expired", () -> topics.getStats(topic).getSubscriptions().get("s").getTotalMsgExpired());
    change("expire", () -> topics.expireMessages(topic, "s", 3600));
    change("skip", () -> topics.skipMessages(topic, "s", 1));
    get("quota used", () -> topics.getStats(topic, true, true, true).getBacklogQuotaLimitSize());
    change("clear", () -> admin.namespaces().clearNamespaceBacklogForSubscription(namespace, "s"));
    get("backlog", () -> topics.getStats(topic).getSubscriptions().get("s").getMsgBacklog());
    get("compact", () -> {
      topics.triggerCompaction(topic);
      LongRunningProcessStatus.Status status = topics.compactionStatus(topic).status;
      return status == LongRunningProcessStatus.Status.RUNNING || status == LongRunningProcessStatus.Status.SUCCESS;
    });
    get("internal stats", () -> topics.getInternalStats(topic).ledgers.get(0).ledgerId == ledger);
    get("internal info", () -> topics.getInternalInfo(topic).contains("\"markDelete\""));
    change("unload", () -> topics.unload(topic));
    change("unsubscribe", () -> admin.namespaces().unsubscribeNamespace(namespace, "mid"));

    change("partitions", () -> topics.createPartitionedTopic(parts, 2, Map.of("a", "b")));
    change("more partitions", () -> topics.updatePartitionedTopic(parts, 3));
    get("get partitions", () -> topics.getPartitionedTopicMetadata(parts).partitions);
    get("partitioned stats", () -> topics.getPartitionedStats(parts, true).getPartitions().size());
    get("terminate partitions", () -> topics.terminatePartitionedTopicAsync(parts).get().size());
    change("truncate", () -> topics.truncate(topic));
    get("terminate", () -> topics.terminateTopicAsync(topic).get() != null);
    change("delete partitions", () -> topics.deletePartitionedTopic(parts));
    change("delete", () -> topics.delete(topic));

    String tenant = namespace.replace('/', '-');
    change("tenant", () -> admin.tenants().createTenant(
        tenant, TenantInfo.builder().adminRoles(Set.of("ops")).allowedClusters(Set.of("standalone")).build()));
    get("get tenant", () -> admin.tenants().getTenantInfo(tenant).getAdminRoles());
    change("delete tenant", () -> admin.tenants().deleteTenant(tenant));
    get("leader", () -> admin.brokers().getLeaderBroker().getBrokerId());
    change("health", () -> admin.brokers().healthcheck());
    get("cluster", () -> admin.clusters().getCluster("standalone").getBrokerServiceUrl());
    // The library's threads would keep the JVM.
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }

  private static String texts(Iterable<Message<byte[]>> messages) {
    StringBuilder joined = new StringBuilder();
    for (Message<byte[]> message : messages) {
      joined.append(joined.length() == 0 ? "" : " ").append(new String(message.getData()));
    }
    return joined.toString();
  }
}
