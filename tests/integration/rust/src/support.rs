//! Connecting, publishing and receiving, for the cases of all modules.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::TryStreamExt;
use pulsar::consumer::{ConsumerOptions, InitialPosition, Message};
use pulsar::message::proto::MessageIdData;
use pulsar::reader::Reader;
use pulsar::{
    producer, Consumer, ConsumerBuilder, OperationRetryOptions, Producer, ProducerOptions, Pulsar, SubType,
    TokioExecutor,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What ends a case that fails: any error of the client, or a text.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
pub type Outcome = Result<(), Failure>;
pub type Client = Pulsar<TokioExecutor>;
pub type TextConsumer = Consumer<String, TokioExecutor>;
pub type TextReader = Reader<String, TokioExecutor>;

/// The limit of every single wait; a healthy broker needs a small part of it.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// How long nothing has to come until a case takes it that all has come.
pub const QUIET: Duration = Duration::from_millis(400);

pub const TYPES: [SubType; 4] = [SubType::Exclusive, SubType::Shared, SubType::Failover, SubType::KeyShared];

static SERIAL: AtomicU64 = AtomicU64::new(0);

fn from_environment(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_| format!("{name} is not set").into())
}

pub async fn connect() -> Result<Client, Failure> {
    let builder = Pulsar::builder(from_environment("HELIOGRAPH_SERVICE_URL")?, TokioExecutor);
    // By default this client refuses to send when 100 commands wait.
    Ok(builder.with_outbound_channel_size(10_000).build().await?)
}

/// Connects a client that reports a refusal, instead of trying again for ever as it does by default.
pub async fn connect_without_retries() -> Result<Client, Failure> {
    let retries = OperationRetryOptions { max_retries: Some(0), ..Default::default() };
    let builder = Pulsar::builder(from_environment("HELIOGRAPH_SERVICE_URL")?, TokioExecutor);
    Ok(builder.with_operation_retry_options(retries).build().await?)
}

/// Returns a local name that no other case uses.
pub fn fresh_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_nanos()).unwrap_or_default();
    format!("rust-{}-{now}", SERIAL.fetch_add(1, Ordering::Relaxed))
}

/// Returns the full name of a topic of public/default that no other case uses.
pub fn fresh_topic() -> String {
    format!("persistent://public/default/{}", fresh_name())
}

/// Returns the builder of a consumer on the subscription `s` that starts at the oldest message.
pub fn consumer(client: &Client, topic: &str, kind: SubType) -> ConsumerBuilder<TokioExecutor> {
    client
        .consumer()
        .with_topic(topic)
        .with_subscription("s")
        .with_subscription_type(kind)
        .with_options(from_earliest())
}

pub fn from_earliest() -> ConsumerOptions {
    ConsumerOptions::default().with_initial_position(InitialPosition::Earliest)
}

pub async fn subscribe(client: &Client, topic: &str, kind: SubType) -> Result<TextConsumer, Failure> {
    Ok(consumer(client, topic, kind).build().await?)
}

pub async fn produce(
    client: &Client,
    topic: &str,
    options: ProducerOptions,
) -> Result<Producer<TokioExecutor>, Failure> {
    Ok(client.producer().with_topic(topic).with_options(options).build().await?)
}

/// Returns the options of a producer that stores `size` messages as one entry.
pub fn batches(size: u32) -> ProducerOptions {
    ProducerOptions { batch_size: Some(size), ..Default::default() }
}

/// A message with a number as its text, of one of `keys` keys in turn, without a key if `keys` is 0.
pub fn numbered(number: usize, keys: usize) -> producer::Message {
    producer::Message {
        payload: number.to_string().into_bytes(),
        partition_key: (keys > 0).then(|| format!("k{}", number % keys)),
        ..Default::default()
    }
}

/// Publishes the numbers below `count` and waits for their receipts; returns their ids.
pub async fn send_numbers(
    producer: &mut Producer<TokioExecutor>,
    count: usize,
    keys: usize,
) -> Result<Vec<MessageIdData>, Failure> {
    let mut receipts = Vec::new();
    for number in 0..count {
        receipts.push(producer.send_non_blocking(numbered(number, keys)).await?);
    }
    let mut ids = Vec::new();
    for receipt in receipts {
        ids.push(timeout(DEADLINE, receipt).await??.message_id.ok_or("a receipt without an id")?);
    }
    Ok(ids)
}

/// Publishes the numbers below `count` to a topic whose messages the subscription `keeper` keeps; returns their ids.
pub async fn kept_numbers(client: &Client, topic: &str, count: usize) -> Result<Vec<MessageIdData>, Failure> {
    let keeper = consumer(client, topic, SubType::Exclusive).with_subscription("keeper");
    keeper.build::<String>().await?.close().await?;
    send_numbers(&mut produce(client, topic, ProducerOptions::default()).await?, count, 0).await
}

pub async fn receive(consumer: &mut TextConsumer) -> Result<Message<String>, Failure> {
    match timeout(DEADLINE, consumer.try_next()).await {
        Err(_) => Err(format!("no message within {DEADLINE:?}").into()),
        Ok(message) => message?.ok_or_else(|| "the consumer ended".into()),
    }
}

pub fn text(message: &Message<String>) -> String {
    String::from_utf8_lossy(&message.payload.data).into_owned()
}

/// Receives messages and acknowledges each; returns their texts.
pub async fn receive_texts(consumer: &mut TextConsumer, count: usize) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    for _ in 0..count {
        let message = receive(consumer).await?;
        consumer.ack(&message).await?;
        texts.push(text(&message));
    }
    Ok(texts)
}

/// Receives until nothing has come for a while; acknowledges nothing.
pub async fn receive_available(consumer: &mut TextConsumer) -> Result<Vec<Message<String>>, Failure> {
    let mut messages = Vec::new();
    while let Ok(message) = timeout(QUIET, consumer.try_next()).await {
        messages.push(message?.ok_or("the consumer ended")?);
    }
    Ok(messages)
}

pub async fn expect_nothing(consumer: &mut TextConsumer) -> Outcome {
    let more = receive_available(consumer).await?;
    assert!(more.is_empty(), "came beyond what was expected: {:?}", more.iter().map(text).collect::<Vec<_>>());
    Ok(())
}

/// Reads `count` messages; returns their texts.
pub async fn read_texts(reader: &mut TextReader, count: usize) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    for _ in 0..count {
        let message = timeout(DEADLINE, reader.try_next()).await.map_err(|_| "nothing to read")??;
        texts.push(text(&message.ok_or("the reader ended")?));
    }
    Ok(texts)
}

/// Returns the texts of the numbers from `first` to before `end`.
pub fn texts(first: usize, end: usize) -> Vec<String> {
    (first..end).map(|number| number.to_string()).collect()
}

/// Returns the refusal of what had to be refused.
pub fn refusal<T>(result: Result<T, pulsar::Error>) -> Result<String, Failure> {
    match result {
        Ok(_) => Err("it was let in".into()),
        Err(error) => Ok(format!("{error:?}")),
    }
}

/// Sends a request to the admin REST API, for what the client itself cannot do.
pub async fn rest(method: &str, path: &str, body: &str) -> Outcome {
    let url = from_environment("HELIOGRAPH_HTTP_URL")?;
    let host = url.strip_prefix("http://").ok_or("HELIOGRAPH_HTTP_URL has to start with http://")?.to_owned();
    let mut stream = TcpStream::connect(&host).await?;
    let head = format!("{method} /admin/v2/{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    let content = format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all((head + &content).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    if answer.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
        return Ok(());
    }
    Err(answer.into())
}

/// Creates a partitioned topic; `topic` is its full name.
pub async fn create_partitions(topic: &str, partitions: usize) -> Outcome {
    let path = format!("{}/partitions", topic.replace("://", "/"));
    rest("PUT", &path, &partitions.to_string()).await
}
