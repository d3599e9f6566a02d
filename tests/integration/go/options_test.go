package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// restful makes a call of the admin API; it decodes the answer, if there is a place for it.
func restful(t *testing.T, method, path, body string, into any) {
	t.Helper()
	request, err := http.NewRequest(method, os.Getenv("HELIOGRAPH_HTTP_URL")+"/admin/v2/"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s %s %v", method, path, response.Status, answer, err)
	}
	if into != nil {
		if err := json.Unmarshal(answer, into); err != nil {
			t.Fatalf("%s %s: %s: %v", method, path, answer, err)
		}
	}
}

type topicStats struct {
	Subscriptions map[string]struct {
		MsgBacklog             int
		SubscriptionProperties map[string]string
		Consumers              []struct {
			AvailablePermits int
			Metadata         map[string]string
		}
	}
	Publishers []struct{ Metadata map[string]string }
}

func statsOf(t *testing.T, topic string) topicStats {
	t.Helper()
	var stats topicStats
	restful(t, http.MethodGet, "persistent/public/default/"+topic+"/stats", "", &stats)
	return stats
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", deadline, what)
		}
	}
}

// What becomes of a message for a consumer that cannot decrypt it, by what the consumer asked for.
func TestConsumersWithoutTheKey(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	blind := func(action int) *pulsar.MessageDecryptionInfo {
		return &pulsar.MessageDecryptionInfo{KeyReader: keyReader(t), ConsumerCryptoFailureAction: action}
	}
	consumers := map[string]pulsar.Consumer{}
	for name, decryption := range map[string]*pulsar.MessageDecryptionInfo{
		"none":    nil,
		"fail":    blind(crypto.ConsumerCryptoFailureActionFail),
		"discard": blind(crypto.ConsumerCryptoFailureActionDiscard),
		"consume": blind(crypto.ConsumerCryptoFailureActionConsume),
	} {
		consumers[name] = subscribe(t, client, pulsar.ConsumerOptions{
			Topic: topic, SubscriptionName: name, Decryption: decryption, AckWithResponse: true,
		})
	}
	send(t, produce(t, client, pulsar.ProducerOptions{
		Topic: topic, Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: keyReader(t), Keys: []string{"the-key"}},
	}), &pulsar.ProducerMessage{Payload: []byte("secret")})
	send(t, produce(t, client, pulsar.ProducerOptions{Topic: topic}), &pulsar.ProducerMessage{Payload: []byte("plain")})
	sealed := receive(t, consumers["consume"])
	if strings.Contains(string(sealed.Payload()), "secret") || sealed.GetEncryptionContext() == nil {
		t.Fatalf("the sealed message: %q, %v", sealed.Payload(), sealed.GetEncryptionContext())
	}
	acknowledge(t, consumers["consume"], sealed)
	for name, consumer := range consumers {
		message := receive(t, consumer)
		if string(message.Payload()) != "plain" {
			t.Fatalf("%s got %q", name, message.Payload())
		}
		acknowledge(t, consumer, message)
	}
	// Only who failed still has the message to get.
	for name, left := range map[string]int{"none": 1, "fail": 1, "discard": 0, "consume": 0} {
		eventually(t, name, func() bool { return statsOf(t, topic).Subscriptions[name].MsgBacklog == left })
	}
}

func TestProducersWithoutTheKey(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	missing := crypto.NewFileKeyReader("/nowhere/public.pem", "/nowhere/private.pem")
	options := pulsar.ProducerOptions{
		Topic: topic, Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: missing, Keys: []string{"k"}},
	}
	if producer, err := client.CreateProducer(options); err == nil {
		defer producer.Close()
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("lost")}); err == nil {
			t.Fatal("a message was sent without the key to seal it")
		}
	}
	send(t, produce(t, client, pulsar.ProducerOptions{Topic: topic}), &pulsar.ProducerMessage{Payload: []byte("plain")})
	if got := string(receive(t, consumer).Payload()); got != "plain" {
		t.Fatalf("got %q", got)
	}
}

func TestStickyKeyShared(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	sticky := func(ranges ...int) pulsar.ConsumerOptions {
		policy, err := pulsar.NewKeySharedPolicySticky(ranges)
		if err != nil {
			t.Fatal(err)
		}
		return pulsar.ConsumerOptions{
			Topic: topic, SubscriptionName: "s", Type: pulsar.KeyShared, KeySharedPolicy: policy,
		}
	}
	low, high := subscribe(t, client, sticky(0, 32767)), subscribe(t, client, sticky(32768, 65535))
	if _, err := client.Subscribe(sticky(100, 200)); err == nil {
		t.Fatal("a range that another consumer has was given away")
	}
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	sendNumbers(t, producer, 0, 60, func(i int) string { return fmt.Sprintf("k%d", i%20) })
	holder := map[string]int{}
	for index, share := range receiveShares(t, 60, low, high) {
		for _, message := range share {
			if other, known := holder[message.Key()]; known && other != index {
				t.Fatalf("key %s went to both", message.Key())
			}
			holder[message.Key()] = index
		}
	}
}

func TestOutOfOrderKeyShared(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	options := pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.KeyShared,
		KeySharedPolicy: &pulsar.KeySharedPolicy{AllowOutOfOrderDelivery: true},
	}
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	keys := func(i int) string { return fmt.Sprintf("k%d", i%20) }
	first := subscribe(t, client, options)
	sendNumbers(t, producer, 0, 20, keys)
	for i := 0; i < 20; i++ {
		receive(t, first)
	}
	// The newcomer does not wait for what the first one holds.
	second := subscribe(t, client, options)
	sendNumbers(t, producer, 20, 40, keys)
	shares := receiveShares(t, 20, first, second)
	if len(shares[1]) == 0 {
		t.Fatal("the newcomer got nothing")
	}
}

func TestZeroQueueConsumers(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, EnableZeroQueueConsumer: true}
	first, second := subscribe(t, client, options), subscribe(t, client, options)
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	sendNumbers(t, producer, 0, 3, nil)
	// Each message goes to the one that asks.
	for i, consumer := range []pulsar.Consumer{second, first, second} {
		message := receive(t, consumer)
		if got := string(message.Payload()); got != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", got, i)
		}
		acknowledge(t, consumer, message)
	}
}

type interceptor struct {
	sync.Mutex
	seen []string
}

func (i *interceptor) add(what string) {
	i.Lock()
	defer i.Unlock()
	i.seen = append(i.seen, what)
}

func (i *interceptor) has(what string) bool {
	i.Lock()
	defer i.Unlock()
	for _, each := range i.seen {
		if each == what {
			return true
		}
	}
	return false
}

func (i *interceptor) BeforeSend(_ pulsar.Producer, message *pulsar.ProducerMessage) {
	message.Properties = map[string]string{"intercepted": "yes"}
}

func (i *interceptor) OnSendAcknowledgement(pulsar.Producer, *pulsar.ProducerMessage, pulsar.MessageID) {
	i.add("receipt")
}

func (i *interceptor) BeforeConsume(pulsar.ConsumerMessage) { i.add("received") }

func (i *interceptor) OnAcknowledge(pulsar.Consumer, pulsar.MessageID) { i.add("acknowledged") }

func (i *interceptor) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) { i.add("refused") }

func TestInterceptors(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	between := &interceptor{}
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, NackRedeliveryDelay: 50 * time.Millisecond,
		Interceptors: pulsar.ConsumerInterceptors{between},
	})
	producer := produce(t, client, pulsar.ProducerOptions{
		Topic: topic, Interceptors: pulsar.ProducerInterceptors{between},
	})
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("x")})
	message := receive(t, consumer)
	if message.Properties()["intercepted"] != "yes" {
		t.Fatalf("the properties are %v", message.Properties())
	}
	consumer.Nack(message)
	acknowledge(t, consumer, receive(t, consumer))
	for _, what := range []string{"receipt", "received", "refused", "acknowledged"} {
		eventually(t, what, func() bool { return between.has(what) })
	}
}

func TestNonDurableConsumer(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "passing", SubscriptionMode: pulsar.NonDurable,
	})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	sendNumbers(t, producer, 0, 5, nil)
	expectNumbers(t, consumer, 0, 5)
	consumer.Close()
	eventually(t, "the subscription's end", func() bool {
		_, there := statsOf(t, topic).Subscriptions["passing"]
		return !there
	})
}

func TestAcknowledgingByID(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Exclusive, AckWithResponse: true, NackRedeliveryDelay: 50 * time.Millisecond,
	})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	sendNumbers(t, producer, 0, 10, nil)
	backlog := func(left int) {
		t.Helper()
		eventually(t, fmt.Sprintf("a backlog of %d", left), func() bool {
			return statsOf(t, topic).Subscriptions["s"].MsgBacklog == left
		})
	}
	var ids []pulsar.MessageID
	for i := 0; i < 10; i++ {
		ids = append(ids, receive(t, consumer).ID())
	}
	if err := consumer.AckIDCumulative(ids[3]); err != nil {
		t.Fatal(err)
	}
	backlog(6)
	if err := consumer.AckIDList([]pulsar.MessageID{ids[5], ids[7]}); err != nil {
		t.Fatal(err)
	}
	backlog(4)
	// An id that was written down is as good as the message.
	written, err := pulsar.DeserializeMessageID(ids[4].Serialize())
	if err != nil {
		t.Fatal(err)
	}
	if written.EntryID() != ids[4].EntryID() || written.LedgerID() != ids[4].LedgerID() {
		t.Fatalf("read %v, wrote %v", written, ids[4])
	}
	if err := consumer.AckID(ids[4]); err != nil {
		t.Fatal(err)
	}
	backlog(3)
}

func TestForcedUnsubscribe(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared}
	first := subscribe(t, client, options)
	subscribe(t, newClient(t), options)
	if err := first.Unsubscribe(); err == nil {
		t.Fatal("a subscription that another consumer uses was removed")
	}
	other := subscribe(t, client, options)
	if err := other.UnsubscribeForce(); err != nil {
		t.Fatal(err)
	}
}

type activity struct{ events chan string }

func (a *activity) BecameActive(pulsar.Consumer, string, int32) { a.events <- "active" }

func (a *activity) BecameInactive(pulsar.Consumer, string, int32) { a.events <- "inactive" }

func TestFailoverTellsWhoIsActive(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	createPartitions(t, topic, 1)
	listeners := []*activity{{make(chan string, 100)}, {make(chan string, 100)}}
	var consumers []pulsar.Consumer
	for index, listener := range listeners {
		consumers = append(consumers, subscribe(t, client, pulsar.ConsumerOptions{
			Topic: topic, Type: pulsar.Failover, EventListener: listener, Name: fmt.Sprintf("c%d", index),
		}))
	}
	until := func(listener *activity, wanted string) {
		t.Helper()
		for {
			select {
			case event := <-listener.events:
				if event == wanted {
					return
				}
			case <-time.After(deadline):
				t.Fatalf("nobody said %q", wanted)
			}
		}
	}
	until(listeners[0], "active")
	until(listeners[1], "inactive")
	consumers[0].Close()
	until(listeners[1], "active")
}

func TestMessagesThroughChannels(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	messages, read := make(chan pulsar.ConsumerMessage, 10), make(chan pulsar.ReaderMessage, 10)
	subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, MessageChannel: messages})
	newReader(t, client, pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(), MessageChannel: read,
	})
	sendNumbers(t, produce(t, client, pulsar.ProducerOptions{Topic: topic}), 0, 5, nil)
	for i := 0; i < 5; i++ {
		select {
		case message := <-messages:
			if got := string(message.Payload()); got != fmt.Sprint(i) {
				t.Fatalf("got %q, want %d", got, i)
			}
		case <-time.After(deadline):
			t.Fatal("nothing came through the channel")
		}
	}
}

func TestPrimitiveSchemas(t *testing.T) {
	client := newClient(t)
	for name, c := range map[string]struct {
		schema      pulsar.Schema
		sent, place any
	}{
		"string": {pulsar.NewStringSchema(nil), "word", new(*string)},
		"int8":   {pulsar.NewInt8Schema(nil), int8(-8), new(int8)},
		"int16":  {pulsar.NewInt16Schema(nil), int16(-300), new(int16)},
		"int32":  {pulsar.NewInt32Schema(nil), int32(1 << 30), new(int32)},
		"int64":  {pulsar.NewInt64Schema(nil), int64(-1 << 60), new(int64)},
		"float":  {pulsar.NewFloatSchema(nil), float32(1.5), new(float32)},
		"double": {pulsar.NewDoubleSchema(nil), 2.25, new(float64)},
	} {
		t.Run(name, func(t *testing.T) {
			topic := topicName()
			consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, Schema: c.schema})
			producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, Schema: c.schema})
			send(t, producer, &pulsar.ProducerMessage{Value: c.sent})
			message := receive(t, consumer)
			if err := message.GetSchemaValue(c.place); err != nil {
				t.Fatal(err)
			}
			got := reflect.ValueOf(c.place).Elem()
			if got.Kind() == reflect.Pointer {
				got = got.Elem()
			}
			if got.Interface() != c.sent {
				t.Fatalf("got %v, want %v", got, c.sent)
			}
			if len(message.SchemaVersion()) != 8 {
				t.Fatalf("version %x", message.SchemaVersion())
			}
		})
	}
}

func TestProtobufSchema(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	sent := wrapperspb.String("word")
	schema := pulsar.NewProtoNativeSchemaWithMessage(sent, nil)
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, Schema: schema})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, Schema: schema})
	send(t, producer, &pulsar.ProducerMessage{Value: sent})
	got := &wrapperspb.StringValue{}
	if err := receive(t, consumer).GetSchemaValue(got); err != nil || !proto.Equal(got, sent) {
		t.Fatalf("got %v, %v", got, err)
	}
}

func TestSchemaOfAMessage(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	first, second := pulsar.NewJSONSchema(flightSchema, nil), pulsar.NewJSONSchema(evolvedSchema, nil)
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, Schema: first})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, Schema: first})
	want := flight{Carrier: "UA", Distance: 7}
	send(t, producer, &pulsar.ProducerMessage{Value: &want})
	send(t, producer, &pulsar.ProducerMessage{Value: &want, Schema: second})
	for _, version := range []byte{0, 1} {
		message := receive(t, consumer)
		var got flight
		if err := message.GetSchemaValue(&got); err != nil || got != want {
			t.Fatalf("got %v, %v", got, err)
		}
		if found := message.SchemaVersion(); len(found) != 8 || found[7] != version {
			t.Fatalf("version %x, want %d", found, version)
		}
	}
}

func TestReaderOfACompactedTopic(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "keeper"})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	sendNumbers(t, producer, 0, 12, func(i int) string { return fmt.Sprintf("k%d", i%3) })
	path := "persistent/public/default/" + topic + "/compaction"
	restful(t, http.MethodPut, path, "", nil)
	eventually(t, "the compaction", func() bool {
		var state struct{ Status string }
		restful(t, http.MethodGet, path, "", &state)
		return state.Status == "SUCCESS"
	})
	reader := newReader(t, client, pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(), StartMessageIDInclusive: true, ReadCompacted: true,
	})
	expectRead(t, reader, 9, 12)
	last, err := reader.GetLastMessageID()
	if err != nil || last.EntryID() != 11 {
		t.Fatalf("last is %v, %v", last, err)
	}
}

func TestDeduplicationByTheProducersNumbers(t *testing.T) {
	client := newClient(t)
	namespace := "public/" + topicName()
	restful(t, http.MethodPut, "namespaces/"+namespace, "{}", nil)
	restful(t, http.MethodPost, "namespaces/"+namespace+"/deduplication", "true", nil)
	topic := "persistent://" + namespace + "/t"
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	options := pulsar.ProducerOptions{Topic: topic, Name: "numbered", DisableBatching: true}
	for _, numbers := range [][]int64{{1, 2, 2, 1, 3}, {3, 2, 4}} {
		producer, err := client.CreateProducer(options)
		if err != nil {
			t.Fatal(err)
		}
		for _, number := range numbers {
			send(t, producer, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(number)), SequenceID: &number})
		}
		producer.Close()
	}
	expectNumbers(t, consumer, 1, 5)
}

func TestNewPartitionsAreFound(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	createPartitions(t, topic, 1)
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, AutoDiscoveryPeriod: 100 * time.Millisecond,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	producer := produce(t, client, pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, PartitionsAutoDiscoveryInterval: 100 * time.Millisecond,
	})
	restful(t, http.MethodPost, "persistent/public/default/"+topic+"/partitions", "3", nil)
	seen := map[int32]bool{}
	number := 0
	eventually(t, "messages of three partitions", func() bool {
		send(t, producer, &pulsar.ProducerMessage{Payload: []byte("x"), Key: fmt.Sprint(number)})
		number++
		if message, came := receiveWithin(t, consumer, 50*time.Millisecond); came {
			seen[message.ID().PartitionIdx()] = true
		}
		return len(seen) == 3
	})
}

func TestTableViewFollowsItsTopic(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	schema := pulsar.NewStringSchema(nil)
	view, err := client.CreateTableView(pulsar.TableViewOptions{
		Topic: topic, Schema: schema, SchemaValueType: reflect.TypeOf(new(string)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	heard := make(chan string, 100)
	if err := view.ForEachAndListen(func(key string, value any) error {
		if text, there := value.(*string); there && text != nil {
			heard <- key + "=" + *text
		} else {
			heard <- key + " deleted"
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, Schema: schema})
	for _, value := range []string{"1", "2"} {
		send(t, producer, &pulsar.ProducerMessage{Key: "k", Value: value})
	}
	expectHeard := func(wanted string) {
		t.Helper()
		select {
		case got := <-heard:
			if got != wanted {
				t.Fatalf("heard %s, want %s", got, wanted)
			}
		case <-time.After(deadline):
			t.Fatalf("did not hear %s", wanted)
		}
	}
	expectHeard("k=1")
	expectHeard("k=2")
	// IsEmpty of this version waits for itself.
	if !view.ContainsKey("k") || view.Size() != 1 {
		t.Fatalf("the view has %v", view.Entries())
	}
	send(t, producer, &pulsar.ProducerMessage{Key: "k", Payload: []byte{}})
	expectHeard("k deleted")
	if view.ContainsKey("k") {
		t.Fatalf("the view has %v", view.Entries())
	}
}

func TestPropertiesAreShown(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Properties: map[string]string{"consumer": "1"},
		SubscriptionProperties: map[string]string{"subscription": "2"},
	})
	produce(t, client, pulsar.ProducerOptions{Topic: topic, Properties: map[string]string{"producer": "3"}})
	stats := statsOf(t, topic)
	shown := stats.Subscriptions["s"]
	if len(shown.Consumers) != 1 || shown.Consumers[0].Metadata["consumer"] != "1" ||
		shown.SubscriptionProperties["subscription"] != "2" ||
		len(stats.Publishers) != 1 || stats.Publishers[0].Metadata["producer"] != "3" {
		t.Fatalf("stats show %+v", stats)
	}
}

func TestLookupByHTTPAndByListener(t *testing.T) {
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Getenv("HELIOGRAPH_HTTP_URL"), OperationTimeout: deadline, Logger: quiet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	sendNumbers(t, produce(t, client, pulsar.ProducerOptions{Topic: topic}), 0, 5, nil)
	expectNumbers(t, consumer, 0, 5)
	other, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: serviceURL(t), ListenerName: "unknown", OperationTimeout: 2 * time.Second, Logger: quiet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	if _, err := other.CreateProducer(pulsar.ProducerOptions{Topic: topic}); err == nil {
		t.Fatal("a listener that nobody configured was taken")
	}
}

func TestBatchesBySizeAndADelay(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, EnableAutoScaledReceiverQueueSize: true,
	})
	producer := produce(t, client, pulsar.ProducerOptions{
		Topic: topic, BatchingMaxMessages: 1000, BatchingMaxSize: 200, BatchingMaxPublishDelay: time.Hour,
	})
	// A full batch goes at once, and each comes whole.
	sendNumbers(t, producer, 0, 100, nil)
	for i := 0; i < 100; i++ {
		message := receive(t, consumer)
		if got := string(message.Payload()); got != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", got, i)
		}
		if message.ID().BatchSize() >= 100 {
			t.Fatalf("one batch of %d", message.ID().BatchSize())
		}
	}
	due := time.Now().Round(0).Add(time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if _, err := producer.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("later"), DeliverAfter: time.Second}); err != nil {
		t.Fatal(err)
	}
	receive(t, consumer)
	if early := time.Until(due); early > 10*time.Millisecond {
		t.Fatalf("came %v before it was due", early)
	}
}
