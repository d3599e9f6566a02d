package cases;

import static cases.Broker.bytes;
import static cases.Broker.check;
import static cases.Broker.eventually;
import static cases.Broker.receive;
import static cases.Broker.refused;
import static cases.Broker.same;

import java.net.URI;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.impl.auth.AuthenticationBasic;
import org.apache.pulsar.client.impl.auth.oauth2.AuthenticationFactoryOAuth2;
import org.apache.pulsar.common.policies.data.AuthAction;

/** Credentials and TLS of every kind, with a broker that is closed. */
final class Securing {
  /** Publishes and receives a text by a client of its own. */
  private static void exchanges(ClientBuilder builder, String topic) throws Exception {
    try (PulsarClient client = builder.build();
        Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscribe();
        Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
      producer.send("x");
      same("x", receive(consumer).getValue());
    }
  }

  /** Returns the exception of the class that is named with which a client may not produce. */
  private static <E extends PulsarClientException> E mayNot(Class<E> kind, ClientBuilder builder, String topic)
      throws Exception {
    try (PulsarClient client = builder.build()) {
      return refused(kind, () -> client.newProducer().topic(topic).create());
    }
  }

  private static void says(Exception refusal, String words) {
    check(String.valueOf(refusal.getMessage()).contains(words), refusal + " does not say: " + words);
  }

  /** Lets the role work by this authentication, both with the client and with the admin library. */
  private static void isTheRole(Callable<Authentication> authentication) throws Exception {
    String topic = Closed.granted(Closed.ROLE, AuthAction.produce, AuthAction.consume);
    exchanges(Closed.client(authentication.call()), topic);
    // A client closes its authentication, so the admin library has another one.
    try (PulsarAdmin admin = Closed.admin(authentication.call())) {
      same(Set.of("s"), Set.copyOf(admin.topics().getSubscriptions(topic)));
      refused(PulsarAdminException.NotAuthorizedException.class, () -> admin.topics().getPermissions(topic));
    }
  }

  @Case
  static void aSuppliedTokenIsRenewedOnTheOpenConnection(Broker broker) throws Exception {
    String topic = Closed.granted("renewing", AuthAction.produce, AuthAction.consume);
    AtomicInteger asked = new AtomicInteger();
    Supplier<String> supplier = () -> {
      asked.incrementAndGet();
      return Closed.token("renewing", 4);
    };
    try (PulsarAdmin admin = Closed.admin(Closed.as(Closed.ADMIN));
        PulsarClient client = Closed.client(AuthenticationFactory.token(supplier)).build();
        Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscribe();
        Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
      String since = admin.topics().getStats(topic).getPublishers().get(0).getConnectedSince();
      int atFirst = asked.get();
      for (int renewals = 1; renewals <= 2; renewals++) {
        int expected = atFirst + renewals;
        eventually("a renewal", () -> asked.get() >= expected);
        producer.send("after " + renewals);
        same("after " + renewals, receive(consumer).getValue());
      }
      same(since, admin.topics().getStats(topic).getPublishers().get(0).getConnectedSince());
    }
  }

  /** The program of docs/security.md: tests/integration/test_docs_clients.py compares the two. */
  @Case
  static void aTokenIsReadFromAFile(Broker broker) throws Exception {
    String topic = Closed.granted(Closed.ROLE, AuthAction.produce, AuthAction.consume);
    PulsarClient client = PulsarClient.builder()
        .serviceUrl(Closed.fact("serviceUrl"))
        .tlsTrustCertsFilePath(Closed.fact("trusted"))
        .enableTlsHostnameVerification(true)
        .authentication("org.apache.pulsar.client.impl.auth.AuthenticationToken", Closed.fact("tokenUrl"))
        .build();
    client.newProducer().topic(topic).create().send(bytes("x"));
    client.close();
  }

  @Case
  static void aFalseTokenIsRefusedWithTheReason(Broker broker) throws Exception {
    Map<String, String> reasons = Map.of(
        Closed.token(Closed.ADMIN, 3600, bytes("another secret that this broker does not know")),
        "the token is not signed by a key that this broker trusts",
        Closed.token(Closed.ADMIN, -60), "the token expired at",
        "x", "not a JWT");
    for (Map.Entry<String, String> each : reasons.entrySet()) {
      says(mayNot(PulsarClientException.AuthenticationException.class,
          Closed.client(AuthenticationFactory.token(each.getKey())), "t"), each.getValue());
      try (PulsarAdmin admin = Closed.admin(AuthenticationFactory.token(each.getKey()))) {
        PulsarAdminException refusal = refused(PulsarAdminException.class, () -> admin.tenants().getTenants());
        same(401, refusal.getStatusCode());
      }
    }
    says(mayNot(PulsarClientException.AuthenticationException.class,
        Closed.client(AuthenticationFactory.create("", "")), "t"), "authentication is required");
  }

  @Case
  static void withoutAGrantNothingIsAllowedAndTheReasonIsStated(Broker broker) throws Exception {
    String topic = Closed.granted("reading", AuthAction.consume);
    says(mayNot(PulsarClientException.AuthorizationException.class, Closed.client(Closed.as("reading")), topic),
        "role 'reading' may not produce to");
    try (PulsarAdmin admin = Closed.admin(Closed.as(Closed.ADMIN));
        PulsarClient client = Closed.client(Closed.as("reading")).build()) {
      client.newConsumer().topic(topic).subscriptionName("s").subscribe().close();
      admin.topics().revokePermissions(topic, "reading");
      says(refused(PulsarClientException.AuthorizationException.class,
          () -> client.newConsumer().topic(topic).subscriptionName("s").subscribe()), "role 'reading' may not");
    }
    try (PulsarAdmin admin = Closed.admin(Closed.as("reading"))) {
      PulsarAdminException refusal = refused(PulsarAdminException.NotAuthorizedException.class,
          () -> admin.tenants().getTenants());
      same(403, refusal.getStatusCode());
      says(refusal, "is not a superuser");
    }
  }

  @Case
  static void theBrokersAuthorityAndNameAreVerified(Broker broker) throws Exception {
    String topic = Closed.granted("verifying", AuthAction.produce, AuthAction.consume);
    Authentication authentication = Closed.as("verifying");
    mayNot(PulsarClientException.class, Closed.client(authentication).tlsTrustCertsFilePath(Closed.fact("foreign"))
        .operationTimeout(2, TimeUnit.SECONDS), topic);
    // Reached, but not in the certificate.
    String byAddress = Closed.fact("serviceUrl").replace("localhost", "127.0.0.2");
    mayNot(PulsarClientException.class, Closed.client(authentication).serviceUrl(byAddress)
        .operationTimeout(2, TimeUnit.SECONDS), topic);
    exchanges(Closed.client(authentication).serviceUrl(byAddress).enableTlsHostnameVerification(false), topic);
    exchanges(Closed.client(authentication), topic);
    exchanges(Closed.client(authentication).serviceUrl(Closed.fact("httpUrl")), topic);
  }

  @Case
  static void aCertificateIsAnIdentity(Broker broker) throws Exception {
    isTheRole(() -> AuthenticationFactory.TLS(Closed.fact("certificate"), Closed.fact("privateKey")));
  }

  @Case
  static void aUserHasAPassword(Broker broker) throws Exception {
    isTheRole(() -> user(Closed.fact("password")));
    says(mayNot(PulsarClientException.AuthenticationException.class, Closed.client(user("guess")), "t"),
        "the user or the password is wrong");
  }

  private static Authentication user(String password) throws Exception {
    AuthenticationBasic basic = new AuthenticationBasic();
    basic.configure(Map.of("userId", Closed.ROLE, "password", password));
    return basic;
  }

  @Case
  static void anIdentityProviderIssuesTokens(Broker broker) throws Exception {
    isTheRole(() -> AuthenticationFactoryOAuth2.clientCredentialsBuilder()
        .issuerUrl(URI.create(Closed.fact("issuer")).toURL())
        .trustCertsFilePath(Closed.fact("issuerTrusted"))
        .credentialsUrl(Path.of(Closed.fact("credentials")).toUri().toURL())
        .audience(Closed.fact("audience"))
        .build());
  }

  @Case
  static void theAdminLibraryGrantsShowsAndRevokes(Broker broker) throws Exception {
    try (PulsarAdmin admin = Closed.admin(Closed.as(Closed.ADMIN))) {
      String namespace = "public/java-" + Long.toString(System.nanoTime(), 36);
      admin.namespaces().createNamespace(namespace);
      admin.namespaces().grantPermissionOnNamespace(namespace, "team", Set.of(AuthAction.produce, AuthAction.consume));
      same(Map.of("team", Set.of(AuthAction.produce, AuthAction.consume)), admin.namespaces().getPermissions(namespace));
      exchanges(Closed.client(Closed.as("team")), "persistent://" + namespace + "/t");
      admin.namespaces().revokePermissionsOnNamespace(namespace, "team");
      same(Map.of(), admin.namespaces().getPermissions(namespace));
      for (String topic : List.of("t", "new")) {
        mayNot(PulsarClientException.AuthorizationException.class, Closed.client(Closed.as("team")),
            "persistent://" + namespace + "/" + topic);
      }
    }
  }
}
