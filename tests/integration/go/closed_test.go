package integration

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

// The closed broker's roles: one that may do everything, and that of the certificate, the user and the issuer's client.
const (
	superuser = "admin"
	billing   = "billing"
)

const (
	produces = utils.AuthAction("produce")
	consumes = utils.AuthAction("consume")
)

// closed returns what the file of facts about the closed broker says, which tests/support/closed_broker.py writes.
func closed(t *testing.T) map[string]string {
	t.Helper()
	file, err := os.Open(os.Getenv("HELIOGRAPH_CLOSED"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	facts := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		facts[name] = value
	}
	return facts
}

// token returns a token (HS256) of a role, signed with the broker's own secret.
func token(t *testing.T, facts map[string]string, role string, valid time.Duration) string {
	t.Helper()
	secret, err := os.ReadFile(facts["secretKey"])
	if err != nil {
		t.Fatal(err)
	}
	return signed(secret, role, valid)
}

func signed(secret []byte, role string, valid time.Duration) string {
	encode := base64.RawURLEncoding.EncodeToString
	claims := fmt.Sprintf(`{"sub":%q,"exp":%d}`, role, time.Now().Add(valid).Unix())
	content := encode([]byte(`{"alg":"HS256"}`)) + "." + encode([]byte(claims))
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(content))
	return content + "." + encode(mac.Sum(nil))
}

// verifying returns the options of a client that verifies the broker and its name.
func verifying(facts map[string]string, authentication pulsar.Authentication) pulsar.ClientOptions {
	return pulsar.ClientOptions{
		URL: facts["serviceUrl"], TLSTrustCertsFilePath: facts["trusted"], TLSValidateHostname: true,
		Authentication: authentication, OperationTimeout: deadline, Logger: quiet(),
	}
}

func clientWith(t *testing.T, options pulsar.ClientOptions) pulsar.Client {
	t.Helper()
	client, err := pulsar.NewClient(options)
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	t.Cleanup(client.Close)
	return client
}

// exchanges publishes and receives a text.
func exchanges(t *testing.T, options pulsar.ClientOptions, topic string) {
	t.Helper()
	client := clientWith(t, options)
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	defer consumer.Close()
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("by TLS")})
	expectMessage(t, receive(t, consumer), "by TLS", "")
}

// mayNot returns why a client may not produce.
func mayNot(t *testing.T, options pulsar.ClientOptions, topic string) string {
	t.Helper()
	_, err := clientWith(t, options).CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err == nil {
		t.Fatal("the producer was let in")
	}
	return err.Error()
}

func expectReason(t *testing.T, reason, words string) {
	t.Helper()
	if !strings.Contains(reason, words) {
		t.Fatalf("%q does not say: %s", reason, words)
	}
}

// granting returns an admin client of the superuser.
func granting(t *testing.T, facts map[string]string) admin.Client {
	t.Helper()
	client, err := admin.New(&config.Config{
		WebServiceURL: facts["httpUrl"], TLSTrustCertsFilePath: facts["trusted"], TLSEnableHostnameVerification: true,
		Token: token(t, facts, superuser, time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// granted creates a topic on which a role may do this, and returns its full name.
func granted(t *testing.T, facts map[string]string, role string, actions ...utils.AuthAction) string {
	t.Helper()
	name, err := utils.GetTopicName("persistent://public/default/" + topicName())
	if err != nil {
		t.Fatal(err)
	}
	topics := granting(t, facts).Topics()
	if err := topics.Create(*name, 0); err != nil {
		t.Fatalf("create: %v", err)
	}
	if err := topics.GrantPermission(*name, role, actions); err != nil {
		t.Fatalf("grant: %v", err)
	}
	if found, err := topics.GetPermissions(*name); err != nil || len(found[role]) != len(actions) {
		t.Fatalf("permissions are %v, %v", found, err)
	}
	return name.String()
}

func TestSuppliedTokenIsRenewedOnTheOpenConnection(t *testing.T) {
	t.Parallel()
	facts := closed(t)
	topic := granted(t, facts, "renewing", produces, consumes)
	var asked atomic.Int64
	client := clientWith(t, verifying(facts, pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) {
		asked.Add(1)
		return token(t, facts, "renewing", 4*time.Second), nil
	})))
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	name, err := utils.GetTopicName(topic)
	if err != nil {
		t.Fatal(err)
	}
	connectedSince := func() string {
		stats, err := granting(t, facts).Topics().GetStats(*name)
		if err != nil || len(stats.Publishers) != 1 {
			t.Fatalf("stats are %v, %v", stats, err)
		}
		return stats.Publishers[0].ConnectedSince
	}
	since := connectedSince()
	for renewals := 0; renewals < 2; renewals++ {
		before := asked.Load()
		for end := time.Now().Add(deadline); asked.Load() == before; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("no renewal was asked for")
			}
		}
		send(t, producer, &pulsar.ProducerMessage{Payload: []byte("renewed")})
		expectMessage(t, receive(t, consumer), "renewed", "")
	}
	if again := connectedSince(); again != since {
		t.Fatalf("the producer connected again: %s after %s", again, since)
	}
}

// The program of docs/security.md: tests/integration/test_docs_clients.py compares the two.
func TestATokenIsReadFromAFile(t *testing.T) {
	t.Parallel()
	facts := closed(t)
	topic := granted(t, facts, billing, produces)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:                   facts["serviceUrl"],
		TLSTrustCertsFilePath: facts["trusted"],
		TLSValidateHostname:   true,
		Authentication:        pulsar.NewAuthenticationTokenFromFile(facts["token"]),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	send(t, produce(t, client, pulsar.ProducerOptions{Topic: topic}), &pulsar.ProducerMessage{Payload: []byte("x")})
}

func TestFalseTokensAreRefused(t *testing.T) {
	t.Parallel()
	facts := closed(t)
	for _, given := range []string{
		signed([]byte("another secret, which is unknown"), superuser, time.Hour),
		token(t, facts, superuser, -time.Minute),
	} {
		options := verifying(facts, pulsar.NewAuthenticationToken(given))
		// It tries again for this time after any refusal of CONNECT, and does not return the reason.
		options.OperationTimeout = time.Second
		expectReason(t, mayNot(t, options, "t"), "connection error")
	}
}

func TestWithoutAGrantNothingIsAllowedAndTheReasonIsStated(t *testing.T) {
	t.Parallel()
	facts := closed(t)
	topic := granted(t, facts, "reading", consumes)
	options := verifying(facts, pulsar.NewAuthenticationToken(token(t, facts, "reading", time.Hour)))
	reason := mayNot(t, options, topic)
	expectReason(t, reason, "AuthorizationError")
	expectReason(t, reason, "role 'reading' may not produce to")
	consumer := subscribe(t, clientWith(t, options), pulsar.ConsumerOptions{Topic: topic})
	consumer.Close()
}

func TestTheBrokersAuthorityAndNameAreVerified(t *testing.T) {
	t.Parallel()
	facts := closed(t)
	topic := granted(t, facts, "verifying", produces, consumes)
	authentication := pulsar.NewAuthenticationToken(token(t, facts, "verifying", time.Hour))
	exchanges(t, verifying(facts, authentication), topic)
	byHTTP := verifying(facts, authentication)
	byHTTP.URL = facts["httpUrl"]
	exchanges(t, byHTTP, topic)
	foreign := verifying(facts, authentication)
	foreign.TLSTrustCertsFilePath, foreign.OperationTimeout = facts["foreign"], time.Second
	expectReason(t, mayNot(t, foreign, topic), "connection error")
	byAddress := verifying(facts, authentication)
	// Reached, but not in the certificate.
	byAddress.URL = strings.Replace(facts["serviceUrl"], "localhost", "127.0.0.2", 1)
	byAddress.OperationTimeout = time.Second
	expectReason(t, mayNot(t, byAddress, topic), "connection error")
	// Without a name this client does not connect at all, unless it is to verify nothing.
	byAddress.TLSValidateHostname = false
	expectReason(t, mayNot(t, byAddress, topic), "connection error")
	byAddress.TLSAllowInsecureConnection, byAddress.OperationTimeout = true, deadline
	exchanges(t, byAddress, topic)
}

func TestACertificateAndAUserAreIdentities(t *testing.T) {
	t.Parallel()
	facts := closed(t)
	user, err := pulsar.NewAuthenticationBasic(billing, facts["password"])
	if err != nil {
		t.Fatal(err)
	}
	for kind, authentication := range map[string]pulsar.Authentication{
		"certificate": pulsar.NewAuthenticationTLS(facts["certificate"], facts["privateKey"]),
		"user":        user,
	} {
		t.Run(kind, func(t *testing.T) {
			topic := granted(t, facts, billing, produces, consumes)
			exchanges(t, verifying(facts, authentication), topic)
		})
	}
}

// It runs before the tests that are parallel: the plugin asks the issuer by Go's default HTTP transport, which a client
// with an https:// service URL gives its own authorities.
func TestAnIssuersClientIsAnIdentity(t *testing.T) {
	facts := closed(t)
	t.Setenv("SSL_CERT_FILE", facts["issuerTrusted"])
	topic := granted(t, facts, billing, produces, consumes)
	exchanges(t, verifying(facts, pulsar.NewAuthenticationOAuth2(map[string]string{
		"type": "client_credentials", "issuerUrl": facts["issuer"], "audience": facts["audience"],
		"privateKey": "file://" + facts["credentials"], "clientId": billing,
	})), topic)
}
