package cases;

import static cases.Broker.bytes;

import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.common.policies.data.AuthAction;

/**
 * A broker with TLS only and with every way to authenticate. It is never the broker of the other cases, and described by
 * the file that the environment variable HELIOGRAPH_CLOSED names: tests/support/closed_broker.py writes it.
 */
final class Closed {
  static final String ADMIN = "admin";
  static final String ROLE = "billing";

  private static final Properties FACTS = new Properties();

  static {
    try (Reader file = Files.newBufferedReader(Path.of(System.getenv("HELIOGRAPH_CLOSED")))) {
      FACTS.load(file);
    } catch (Exception unreadable) {
      throw new ExceptionInInitializerError(unreadable);
    }
  }

  private Closed() {}

  static String fact(String name) {
    return FACTS.getProperty(name);
  }

  /** Returns a token (HS256) of a role that is valid for so many seconds, signed with the broker's own secret. */
  static String token(String role, long validS) {
    try {
      return token(role, validS, Files.readAllBytes(Path.of(fact("secretKey"))));
    } catch (java.io.IOException unreadable) {
      throw new java.io.UncheckedIOException(unreadable);
    }
  }

  static String token(String role, long validS, byte[] secret) {
    long ends = System.currentTimeMillis() / 1000 + validS;
    Base64.Encoder base64 = Base64.getUrlEncoder().withoutPadding();
    String signed = base64.encodeToString(bytes("{\"alg\":\"HS256\"}")) + "."
        + base64.encodeToString(bytes("{\"sub\":\"" + role + "\",\"exp\":" + ends + "}"));
    try {
      Mac mac = Mac.getInstance("HmacSHA256");
      mac.init(new SecretKeySpec(secret, "HmacSHA256"));
      return signed + "." + base64.encodeToString(mac.doFinal(bytes(signed)));
    } catch (java.security.GeneralSecurityException missing) {
      throw new IllegalStateException(missing);
    }
  }

  /** Returns a client that verifies the broker and its name. */
  static ClientBuilder client(Authentication authentication) {
    return PulsarClient.builder().serviceUrl(fact("serviceUrl")).tlsTrustCertsFilePath(fact("trusted"))
        .enableTlsHostnameVerification(true).authentication(authentication).ioThreads(1).listenerThreads(1)
        .operationTimeout(Broker.DEADLINE_S, TimeUnit.SECONDS);
  }

  static Authentication as(String role) {
    return AuthenticationFactory.token(token(role, 3600));
  }

  /** Returns an admin client that verifies the broker and its name. */
  static PulsarAdmin admin(Authentication authentication) throws Exception {
    return PulsarAdmin.builder().serviceHttpUrl(fact("httpUrl")).tlsTrustCertsFilePath(fact("trusted"))
        .enableTlsHostnameVerification(true).authentication(authentication).build();
  }

  /** Creates a topic on which a role may do this, and returns its full name. */
  static String granted(String role, AuthAction... actions) throws Exception {
    String topic = "persistent://public/default/java-" + Long.toString(System.nanoTime(), 36);
    try (PulsarAdmin admin = admin(as(ADMIN))) {
      admin.topics().createNonPartitionedTopic(topic);
      admin.topics().grantPermission(topic, role, Set.of(actions));
      Broker.same(Map.of(role, Set.of(actions)), admin.topics().getPermissions(topic));
    }
    return topic;
  }
}
