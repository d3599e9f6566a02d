package cases;

import static cases.Broker.DEADLINE_S;
import static cases.Broker.bytes;
import static cases.Broker.check;
import static cases.Broker.eventually;
import static cases.Broker.nothingFor;
import static cases.Broker.receive;
import static cases.Broker.refused;
import static cases.Broker.same;

import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerCryptoFailureAction;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;

/** What the client does to payloads: compression, chunks, encryption, and the parts of batches. */
final class Payloads {
  @Case
  static void everyCompressionArrivesBatchedOrNot(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<byte[]> consumer = broker.client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
      for (CompressionType type : CompressionType.values()) {
        for (boolean batched : List.of(false, true)) {
          byte[] payload = bytes((type + " compresses this ").repeat(500));
          try (Producer<byte[]> producer = broker.client.newProducer().topic(topic).compressionType(type)
              .enableBatching(batched).create()) {
            producer.sendAsync(payload);
            producer.send(payload);
          }
          check(Arrays.equals(payload, receive(consumer).getData()), type + " came damaged");
          check(Arrays.equals(payload, receive(consumer).getData()), type + " came damaged");
        }
      }
      check(broker.admin.topics().getStats(topic).getBytesInCounter() < 4 * 9_000 * 5, "nothing was compressed");
    }
  }

  private static ProducerBuilder<byte[]> chunking(Broker broker, String topic) {
    return broker.client.newProducer().topic(topic).enableBatching(false).enableChunking(true);
  }

  @Case
  static void aLargeMessageGoesInChunks(Broker broker) throws Exception {
    String topic = broker.topic();
    byte[] large = new byte[12 * 1024 * 1024];
    new Random(1).nextBytes(large);
    for (SubscriptionType type : List.of(SubscriptionType.Exclusive, SubscriptionType.Shared)) {
      try (Consumer<byte[]> consumer = broker.client.newConsumer().topic(topic).subscriptionName(type.name())
              .subscriptionType(type).subscribe();
          Producer<byte[]> producer = chunking(broker, topic).create()) {
        producer.send(bytes("before"));
        MessageId id = producer.newMessage().key("k").property("size", "large").value(large).send();
        producer.send(bytes("after"));
        same("before", new String(receive(consumer).getData()));
        Message<byte[]> message = receive(consumer);
        check(Arrays.equals(large, message.getData()), "the chunks came together wrongly");
        same(id, message.getMessageId());
        same("k", message.getKey());
        same("large", message.getProperty("size"));
        same("after", new String(receive(consumer).getData()));
        consumer.acknowledge(message);
        eventually("the chunks are acknowledged, the two others are not",
            () -> broker.stats(topic, type.name()).getMsgBacklog() == 2);
      }
    }
    refused(PulsarClientException.class,
        () -> broker.client.newProducer().topic(topic).enableBatching(true).enableChunking(true).create());
  }

  @Case
  static void chunksOfTwoProducersMayMix(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<byte[]> consumer = broker.client.newConsumer().topic(topic).subscriptionName("s")
            .maxPendingChunkedMessage(2).expireTimeOfIncompleteChunkedMessage(1, TimeUnit.MINUTES).subscribe();
        Producer<byte[]> one = chunking(broker, topic).chunkMaxMessageSize(1000).create();
        Producer<byte[]> two = chunking(broker, topic).chunkMaxMessageSize(1000).create()) {
      List<CompletableFuture<MessageId>> sent = new ArrayList<>();
      for (int at = 0; at < 10; at++) {
        sent.add(one.sendAsync(bytes("1".repeat(5_000))));
        sent.add(two.sendAsync(bytes("2".repeat(5_000))));
      }
      for (CompletableFuture<MessageId> each : sent) {
        each.get(DEADLINE_S, TimeUnit.SECONDS);
      }
      Map<String, Integer> counts = new HashMap<>();
      for (int at = 0; at < 20; at++) {
        Message<byte[]> message = receive(consumer);
        same(5_000, message.size());
        counts.merge(new String(message.getData(), 0, 1), 1, Integer::sum);
        consumer.acknowledge(message);
      }
      same(Map.of("1", 10, "2", 10), counts);
    }
  }

  /** Keys that are kept in memory, as an application would read them from its own store. */
  private static final class Keys implements CryptoKeyReader {
    private static final long serialVersionUID = 1;
    private final Map<String, String> texts = new HashMap<>();

    Keys(String algorithm, int size) throws Exception {
      KeyPairGenerator generator = KeyPairGenerator.getInstance(algorithm);
      generator.initialize(size);
      KeyPair pair = generator.generateKeyPair();
      texts.put("public", pem("PUBLIC KEY", pair.getPublic().getEncoded()));
      texts.put("private", pem("PRIVATE KEY", pair.getPrivate().getEncoded()));
    }

    private static String pem(String kind, byte[] key) {
      return "-----BEGIN " + kind + "-----\n" + Base64.getMimeEncoder(64, bytes("\n")).encodeToString(key)
          + "\n-----END " + kind + "-----\n";
    }

    private EncryptionKeyInfo key(String kind, Map<String, String> metadata) {
      EncryptionKeyInfo info = new EncryptionKeyInfo();
      info.setKey(bytes(texts.get(kind)));
      info.setMetadata(metadata);
      return info;
    }

    @Override
    public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
      return key("public", Map.of("version", "1"));
    }

    @Override
    public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
      check("1".equals(metadata.get("version")), "the key's metadata is " + metadata);
      return key("private", metadata);
    }
  }

  @Case
  static void onlyTheOwnerOfTheKeyReadsWhatIsEncrypted(Broker broker) throws Exception {
    String topic = broker.topic();
    Keys keys = new Keys("RSA", 2048);
    try (Consumer<String> owner = broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("owner")
            .cryptoKeyReader(keys).subscribe();
        Consumer<byte[]> stranger = broker.client.newConsumer().topic(topic).subscriptionName("stranger")
            .cryptoFailureAction(ConsumerCryptoFailureAction.CONSUME).subscribe();
        Consumer<byte[]> careless = broker.client.newConsumer().topic(topic).subscriptionName("careless")
            .cryptoFailureAction(ConsumerCryptoFailureAction.DISCARD).subscribe()) {
      for (boolean batched : List.of(false, true)) {
        try (Producer<String> producer = broker.client.newProducer(Schema.STRING).topic(topic).enableBatching(batched)
            .addEncryptionKey("mine").cryptoKeyReader(keys).compressionType(CompressionType.LZ4).create()) {
          producer.newMessage().property("plain", "yes").value("secret").send();
        }
        Message<String> message = receive(owner);
        same("secret", message.getValue());
        same("yes", message.getProperty("plain"));
        Message<byte[]> sealed = receive(stranger);
        check(!new String(sealed.getData()).contains("secret"), "not encrypted");
        check(sealed.getEncryptionCtx().orElseThrow().getKeys().containsKey("mine"), "the name of the key");
      }
      nothingFor(careless);
      eventually("what is discarded is acknowledged", () -> broker.stats(topic, "careless").getMsgBacklog() == 0);
    }
  }

  @Case
  static void partsOfABatchAreAcknowledgedOneByOne(Broker broker) throws Exception {
    for (SubscriptionType type : List.of(SubscriptionType.Shared, SubscriptionType.Exclusive)) {
      String topic = broker.topic();
      try (Consumer<String> consumer = broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
              .subscriptionType(type).enableBatchIndexAcknowledgment(true).subscribe();
          Producer<String> producer = broker.client.newProducer(Schema.STRING).topic(topic).batchingMaxMessages(5)
              .batchingMaxPublishDelay(1, TimeUnit.HOURS).create()) {
        for (int at = 0; at < 5; at++) {
          producer.sendAsync("m" + at);
        }
        producer.flush();
        for (int at = 0; at < 5; at++) {
          Message<String> message = receive(consumer);
          if (at % 2 == 0) {
            consumer.acknowledge(message);
          }
        }
      }
      try (Consumer<String> consumer = broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
          .subscriptionType(type).enableBatchIndexAcknowledgment(true).subscribe()) {
        same(List.of("m1", "m3"), Broker.take(consumer, 2));
        nothingFor(consumer);
        eventually("the batch is gone", () -> broker.stats(topic, "s").getMsgBacklog() == 0);
      }
    }
  }

  @Case
  static void aBatchWithoutThatIsAcknowledgedAsAWhole(Broker broker) throws Exception {
    String topic = broker.topic();
    try (Consumer<String> consumer = broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
            .enableBatchIndexAcknowledgment(false).subscribe();
        Producer<String> producer = broker.client.newProducer(Schema.STRING).topic(topic).batchingMaxMessages(3)
            .batchingMaxPublishDelay(1, TimeUnit.HOURS).create()) {
      for (int at = 0; at < 3; at++) {
        producer.sendAsync("m" + at);
      }
      consumer.acknowledge(receive(consumer));
      receive(consumer);
      receive(consumer);
    }
    try (Consumer<String> consumer = broker.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
        .enableBatchIndexAcknowledgment(false).subscribe()) {
      same(List.of("m0", "m1", "m2"), Broker.take(consumer, 3));
      eventually("the batch is gone", () -> broker.stats(topic, "s").getMsgBacklog() == 0);
    }
  }

  @Case
  static void aTransactionIsRefused(Broker broker) throws Exception {
    PulsarClientException refusal = refused(PulsarClientException.class,
        () -> PulsarClient.builder().serviceUrl(broker.serviceUrl).enableTransaction(true).build());
    check(refusal.getMessage().contains("doesn't enable the transaction coordinator"), refusal.getMessage());
    refused(PulsarClientException.class, () -> broker.client.newTransaction().build().get());
  }
}
