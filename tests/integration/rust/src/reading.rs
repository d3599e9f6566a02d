//! Cases of readers, positions, and of several topics or partitions at once.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use pulsar::message::proto::{command_get_topics_of_namespace::Mode, MessageIdData};
use pulsar::routing_policy::RoutingPolicy;
use pulsar::{ProducerOptions, SubType};
use regex::Regex;
use tokio::time::timeout;

use crate::support::*;

async fn reader(client: &Client, topic: &str, options: pulsar::ConsumerOptions) -> Result<TextReader, Failure> {
    Ok(client.reader().with_topic(topic).with_options(options).into_reader().await?)
}

pub async fn reader_from_the_earliest() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    kept_numbers(&client, &topic, 10).await?;
    // Two of them read independently.
    for _ in 0..2 {
        let mut reader = reader(&client, &topic, from_earliest()).await?;
        assert_eq!(read_texts(&mut reader, 10).await?, texts(0, 10));
    }
    Ok(())
}

pub async fn reader_from_the_latest() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    kept_numbers(&client, &topic, 10).await?;
    let mut reader = reader(&client, &topic, Default::default()).await?;
    let mut producer = produce(&client, &topic, ProducerOptions::default()).await?;
    timeout(DEADLINE, producer.send_non_blocking("new").await?).await??;
    assert_eq!(read_texts(&mut reader, 1).await?, ["new"]);
    Ok(())
}

pub async fn reader_from_an_id() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let ids = kept_numbers(&client, &topic, 10).await?;
    let mut reader = reader(&client, &topic, from_earliest().starting_on_message(ids[4].clone())).await?;
    // The message itself comes, too: this client does not drop it as others do.
    assert_eq!(read_texts(&mut reader, 6).await?, texts(4, 10));
    Ok(())
}

pub async fn reader_seeks_an_id() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let ids = kept_numbers(&client, &topic, 10).await?;
    let mut first = reader(&client, &topic, from_earliest()).await?;
    assert_eq!(read_texts(&mut first, 10).await?, texts(0, 10));
    let last: MessageIdData = first.get_last_message_id().await?;
    assert_eq!((last.ledger_id, last.entry_id), (ids[9].ledger_id, ids[9].entry_id));
    first.seek(Some(ids[6].clone()), None).await?;
    assert_eq!(read_texts(&mut first, 4).await?, texts(6, 10));
    Ok(())
}

// A seek makes this client replace its consumer, while the old one still ends: only Shared lets both in at once, and the
// order is not kept.

pub async fn consumer_seeks_an_id() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let ids = kept_numbers(&client, &topic, 10).await?;
    let mut consumer = subscribe(&client, &topic, SubType::Shared).await?;
    assert_eq!(receive_texts(&mut consumer, 10).await?, texts(0, 10));
    consumer.seek(None, Some(ids[3].clone()), None, client.clone()).await?;
    let mut again = receive_texts(&mut consumer, 7).await?;
    again.sort();
    assert_eq!(again, texts(3, 10));
    expect_nothing(&mut consumer).await
}

pub async fn consumer_seeks_a_time() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    kept_numbers(&client, &topic, 10).await?;
    let mut consumer = subscribe(&client, &topic, SubType::Shared).await?;
    let mut times = Vec::new();
    for _ in 0..10 {
        let message = receive(&mut consumer).await?;
        consumer.ack(&message).await?;
        times.push(message.metadata().publish_time);
    }
    // Several messages may have been published in the same millisecond.
    let first = times.iter().position(|time| *time == times[5]).ok_or("no time")?;
    consumer.seek(None, None, Some(times[5]), client.clone()).await?;
    let mut again = receive_texts(&mut consumer, 10 - first).await?;
    again.sort();
    assert_eq!(again, texts(first, 10));
    expect_nothing(&mut consumer).await
}

pub async fn last_message_id_is_that_of_the_last() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let ids = kept_numbers(&client, &topic, 3).await?;
    let mut consumer = subscribe(&client, &topic, SubType::Shared).await?;
    let last = consumer.get_last_message_id().await?;
    assert_eq!((last[0].ledger_id, last[0].entry_id), (ids[2].ledger_id, ids[2].entry_id));
    Ok(())
}

pub async fn compacted_topic_has_the_last_values() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let keeper = consumer(&client, &topic, SubType::Exclusive).with_subscription("keeper");
    keeper.build::<String>().await?.close().await?;
    send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 9, 3).await?;
    rest("PUT", &format!("{}/compaction", topic.replace("://", "/")), "").await?;
    // Compaction runs by itself: a reader of its result is asked until it has come to its end.
    let compacted = async {
        loop {
            let mut reader = reader(&client, &topic, from_earliest().read_compacted(true)).await?;
            let mut found = Vec::new();
            while found.last().is_none_or(|each| each != "8") {
                found.extend(read_texts(&mut reader, 1).await?);
            }
            if found.len() == 3 {
                return Ok::<_, Failure>(found);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert_eq!(timeout(DEADLINE, compacted).await??, texts(6, 9));
    Ok(())
}

pub async fn list_of_topics() -> Outcome {
    let client = connect().await?;
    let topics: Vec<String> = (0..3).map(|_| fresh_topic()).collect();
    let builder = client.consumer().with_topics(&topics).with_subscription("s").with_options(from_earliest());
    let mut consumer: TextConsumer = builder.with_subscription_type(SubType::Shared).build().await?;
    for topic in &topics {
        let mut producer = produce(&client, topic, ProducerOptions::default()).await?;
        timeout(DEADLINE, producer.send_non_blocking(topic.as_str()).await?).await??;
    }
    let received = receive_texts(&mut consumer, 3).await?;
    assert_eq!(received.into_iter().collect::<HashSet<_>>(), topics.into_iter().collect());
    Ok(())
}

pub async fn regex_picks_up_later_topics() -> Outcome {
    let client = connect().await?;
    let prefix = fresh_name();
    let topic = |suffix: &str| format!("persistent://public/default/{prefix}-{suffix}");
    let mut early = produce(&client, &topic("early"), ProducerOptions::default()).await?;
    let builder = client.consumer().with_topic_regex(Regex::new(&format!("^{}$", topic(".*")))?);
    let builder = builder.with_lookup_namespace("public/default").with_topic_refresh(Duration::from_millis(300));
    let builder = builder.with_subscription("s").with_subscription_type(SubType::Shared).with_options(from_earliest());
    let mut consumer: TextConsumer = builder.build().await?;
    timeout(DEADLINE, early.send_non_blocking("early").await?).await??;
    assert_eq!(receive_texts(&mut consumer, 1).await?, ["early"]);
    let mut late = produce(&client, &topic("late"), ProducerOptions::default()).await?;
    timeout(DEADLINE, late.send_non_blocking("late").await?).await??;
    assert_eq!(receive_texts(&mut consumer, 1).await?, ["late"]);
    Ok(())
}

pub async fn partitions_get_all_messages() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    create_partitions(&topic, 3).await?;
    assert_eq!(client.lookup_partitioned_topic_number(&topic).await?, 3);
    for kind in TYPES {
        let builder = consumer(&client, &topic, kind).with_subscription(format!("{kind:?}"));
        builder.build::<String>().await?.close().await?;
    }
    send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 30, 0).await?;
    for kind in TYPES {
        let builder = consumer(&client, &topic, kind).with_subscription(format!("{kind:?}"));
        let mut consumer: TextConsumer = builder.build().await?;
        let (mut partitions, mut numbers) = (HashSet::new(), HashSet::new());
        for _ in 0..30 {
            let message = receive(&mut consumer).await?;
            partitions.insert(message.topic.clone());
            numbers.insert(text(&message));
        }
        assert_eq!((partitions.len(), numbers), (3, texts(0, 30).into_iter().collect()), "{kind:?}");
    }
    Ok(())
}

pub async fn key_stays_in_its_partition() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    create_partitions(&topic, 3).await?;
    let mut consumer = subscribe(&client, &topic, SubType::Shared).await?;
    let options = ProducerOptions { routing_policy: Some(RoutingPolicy::RoundRobin), ..Default::default() };
    send_numbers(&mut produce(&client, &topic, options).await?, 60, 12).await?;
    let mut places = HashMap::new();
    for _ in 0..60 {
        let message = receive(&mut consumer).await?;
        let key = message.key().ok_or("a message without its key")?;
        let index = RoutingPolicy::compute_partition_index_for_key(&key, 3);
        assert_eq!(message.topic, format!("{topic}-partition-{index}"), "{key}");
        places.insert(key, index);
    }
    assert_eq!(places.len(), 12);
    Ok(())
}

pub async fn single_partition_keeps_the_order() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    create_partitions(&topic, 3).await?;
    let mut consumer = subscribe(&client, &topic, SubType::Exclusive).await?;
    let options = ProducerOptions { routing_policy: Some(RoutingPolicy::Single), ..Default::default() };
    send_numbers(&mut produce(&client, &topic, options).await?, 30, 0).await?;
    assert_eq!(receive_texts(&mut consumer, 30).await?, texts(0, 30));
    Ok(())
}

pub async fn topics_of_a_namespace() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let _producer = produce(&client, &topic, ProducerOptions::default()).await?;
    let persistent = client.get_topics_of_namespace("public/default".to_owned(), Mode::Persistent).await?;
    assert!(persistent.contains(&topic), "{persistent:?}");
    let others = client.get_topics_of_namespace("public/default".to_owned(), Mode::NonPersistent).await?;
    assert!(!others.contains(&topic), "{others:?}");
    Ok(())
}
