package cases;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.policies.data.SubscriptionStats;
import org.apache.pulsar.common.policies.data.TenantInfo;

/** The broker as one case sees it, and what the cases have in common. */
final class Broker implements AutoCloseable {
  /** The time (s) after which something that must happen counts as missing; a busy machine gets by. */
  static final int DEADLINE_S = 60;
  /** The time (ms) in which something that must not happen is looked for. */
  static final int QUIET_MS = 600;

  private static final AtomicInteger SERIAL = new AtomicInteger();

  /** The case's own: what breaks a connection does not disturb the others. */
  final PulsarClient client;
  final PulsarAdmin admin;
  final String serviceUrl;
  private final String namespace;

  Broker(String serviceUrl, PulsarAdmin admin, String namespace) throws Exception {
    this.serviceUrl = serviceUrl;
    this.admin = admin;
    this.namespace = namespace;
    client = PulsarClient.builder().serviceUrl(serviceUrl).ioThreads(1).listenerThreads(1).build();
  }

  /** Creates a tenant, if it is not there, and the namespace of this run. */
  static String prepared(PulsarAdmin admin) throws PulsarAdminException {
    String namespace = "java-client/" + Long.toString(System.nanoTime(), 36);
    try {
      admin.tenants().createTenant("java-client", TenantInfo.builder()
          .allowedClusters(Set.copyOf(admin.clusters().getClusters())).build());
    } catch (PulsarAdminException.ConflictException thereAlready) {
      // A broker that is kept running has it from the last run.
    }
    admin.namespaces().createNamespace(namespace);
    return namespace;
  }

  @Override
  public void close() throws Exception {
    client.close();
  }

  /** Returns the full name of a topic that no other case uses; it does not exist yet. */
  String topic() {
    return "persistent://" + namespace + "/t" + SERIAL.incrementAndGet();
  }

  /** Creates a partitioned topic and returns its full name. */
  String partitioned(int partitions) throws PulsarAdminException {
    String topic = topic();
    admin.topics().createPartitionedTopic(topic, partitions);
    return topic;
  }

  /** Creates a namespace of the case's own and returns {@code tenant/name}. */
  String namespace() throws PulsarAdminException {
    String name = namespace + "-" + SERIAL.incrementAndGet();
    admin.namespaces().createNamespace(name);
    return name;
  }

  /** Returns an unbatched producer of texts. */
  Producer<String> texts(String topic) throws Exception {
    return client.newProducer(Schema.STRING).topic(topic).enableBatching(false).create();
  }

  /** Publishes each text as a message of its own. */
  void publish(String topic, String... texts) throws Exception {
    try (Producer<String> producer = texts(topic)) {
      for (String text : texts) {
        producer.send(text);
      }
    }
  }

  /** Publishes each text as a message of its own, all in the backlog of subscription "s". */
  void store(String topic, String... texts) throws Exception {
    admin.topics().createSubscription(topic, "s", MessageId.earliest);
    publish(topic, texts);
  }

  /** Returns the stats of a subscription. */
  SubscriptionStats stats(String topic, String subscription) throws PulsarAdminException {
    return admin.topics().getStats(topic).getSubscriptions().get(subscription);
  }

  /**
   * Waits until so many consumers of a topic without storage can get a message: this client returns from subscribing
   * before it asks for messages, and such a topic drops what nobody has asked for.
   */
  void awaitPermits(String topic, int consumers) throws Exception {
    eventually("permits of " + consumers + " consumers", () -> admin.topics().getStats(topic).getSubscriptions()
        .values().stream().flatMap(each -> each.getConsumers().stream())
        .filter(each -> each.getAvailablePermits() > 0).count() == consumers);
  }

  /** Receives one message; its absence is a failure. */
  static <T> Message<T> receive(Consumer<T> consumer) throws Exception {
    Message<T> message = consumer.receive(DEADLINE_S, TimeUnit.SECONDS);
    check(message != null, "no message came to " + consumer.getConsumerName());
    return message;
  }

  /** Receives as many messages as are expected and acknowledges each; returns their values. */
  static <T> List<T> take(Consumer<T> consumer, int count) throws Exception {
    List<T> values = new ArrayList<>();
    for (int at = 0; at < count; at++) {
      Message<T> message = receive(consumer);
      consumer.acknowledge(message);
      values.add(message.getValue());
    }
    return values;
  }

  /** Receives and acknowledges what consumers get, until there is as much as is expected; returns each one's share. */
  static <T> List<List<Message<T>>> shares(int count, List<Consumer<T>> consumers) throws Exception {
    List<List<Message<T>>> shares = new ArrayList<>();
    consumers.forEach(each -> shares.add(new ArrayList<>()));
    int[] total = {0};
    eventually(count + " messages", () -> {
      for (int at = 0; at < consumers.size(); at++) {
        Message<T> message;
        while ((message = consumers.get(at).receive(50, TimeUnit.MILLISECONDS)) != null) {
          consumers.get(at).acknowledge(message);
          shares.get(at).add(message);
          total[0]++;
        }
      }
      return total[0] >= count;
    });
    same(count, total[0]);
    return shares;
  }

  static void nothingFor(Consumer<?> consumer) throws Exception {
    Message<?> message = consumer.receive(QUIET_MS, TimeUnit.MILLISECONDS);
    check(message == null, "a message came: " + message);
  }

  static void check(boolean holds, String otherwise) {
    if (!holds) {
      throw new AssertionError(otherwise);
    }
  }

  static void same(Object expected, Object found) {
    check(Objects.equals(expected, found), "expected " + expected + ", found " + found);
  }

  /** Waits until a condition holds. */
  static void eventually(String what, Callable<Boolean> condition) throws Exception {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_S);
    while (!condition.call()) {
      check(System.nanoTime() < end, "not within " + DEADLINE_S + " s: " + what);
      Thread.sleep(20);
    }
  }

  /** Does what must be refused and returns the exception, which must be of the class that is named. */
  static <E extends Throwable> E refused(Class<E> kind, Callable<?> action) {
    Object result;
    try {
      result = action.call();
    } catch (Throwable thrown) {
      Throwable cause = thrown;
      while (!kind.isInstance(cause)
          && (cause instanceof ExecutionException || cause instanceof CompletionException)) {
        cause = cause.getCause();
      }
      if (kind.isInstance(cause)) {
        return kind.cast(cause);
      }
      throw new AssertionError("expected " + kind.getSimpleName() + ", found " + thrown, thrown);
    }
    throw new AssertionError("expected " + kind.getSimpleName() + ", but it was done: " + result);
  }

  static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }
}
