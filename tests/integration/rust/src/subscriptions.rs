//! Cases of subscription types, acknowledgement and redelivery.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use pulsar::consumer::DeadLetterPolicy;
use pulsar::{ConsumerOptions, ProducerOptions, SubType};

use crate::support::*;

pub async fn exclusive_refuses_a_second_consumer() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let _first = subscribe(&client, &topic, SubType::Exclusive).await?;
    let other = connect_without_retries().await?;
    let why = refusal(consumer(&other, &topic, SubType::Exclusive).build::<String>().await)?;
    assert!(why.contains("ConsumerBusy"), "{why}");
    Ok(())
}

pub async fn shared_spreads_and_redelivers() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut first: TextConsumer = consumer(&client, &topic, SubType::Shared).with_batch_size(10).build().await?;
    let mut second: TextConsumer = consumer(&client, &topic, SubType::Shared).with_batch_size(10).build().await?;
    send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 20, 0).await?;
    let lost = receive_available(&mut first).await?;
    let kept = receive_available(&mut second).await?;
    assert!(!lost.is_empty() && !kept.is_empty() && lost.len() + kept.len() == 20, "{} {}", lost.len(), kept.len());
    first.close().await?;
    let again = receive_texts(&mut second, lost.len()).await?;
    let expected: HashSet<String> = lost.iter().map(text).collect();
    assert_eq!(again.into_iter().collect::<HashSet<_>>(), expected);
    Ok(())
}

pub async fn failover_takes_over() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut first: TextConsumer = consumer(&client, &topic, SubType::Failover).with_consumer_name("a").build().await?;
    let mut second: TextConsumer = consumer(&client, &topic, SubType::Failover).with_consumer_name("b").build().await?;
    send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 10, 0).await?;
    assert_eq!(receive_texts(&mut first, 4).await?, texts(0, 4));
    expect_nothing(&mut second).await?;
    first.close().await?;
    assert_eq!(receive_texts(&mut second, 6).await?, texts(4, 10));
    Ok(())
}

pub async fn lower_priority_waits() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let with_priority =
        |level| consumer(&client, &topic, SubType::Shared).with_options(from_earliest().with_priority_level(level));
    let mut late: TextConsumer = with_priority(1).build().await?;
    let mut early: TextConsumer = with_priority(0).build().await?;
    send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 20, 0).await?;
    assert_eq!(receive_texts(&mut early, 20).await?, texts(0, 20));
    expect_nothing(&mut late).await
}

pub async fn key_shared_keeps_keys_together() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut consumers =
        [subscribe(&client, &topic, SubType::KeyShared).await?, subscribe(&client, &topic, SubType::KeyShared).await?];
    send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 300, 30).await?;
    let mut holders = HashMap::new();
    let mut last: HashMap<String, usize> = HashMap::new();
    let mut count = 0;
    for (index, each) in consumers.iter_mut().enumerate() {
        let share = receive_available(each).await?;
        assert!(!share.is_empty(), "consumer {index} has no key");
        for message in share {
            let key = message.key().ok_or("a message without its key")?;
            let number: usize = text(&message).parse()?;
            assert_eq!(*holders.entry(key.clone()).or_insert(index), index, "{key} went to both consumers");
            if let Some(before) = last.insert(key.clone(), number) {
                assert_eq!(number, before + 30, "{key}");
            }
            count += 1;
        }
    }
    assert_eq!((count, holders.len()), (300, 30));
    Ok(())
}

pub async fn negative_acknowledgement_redelivers() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut consumer = subscribe(&client, &topic, SubType::Shared).await?;
    send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 1, 0).await?;
    for _ in 0..3 {
        let message = receive(&mut consumer).await?;
        assert_eq!(text(&message), "0");
        consumer.nack(&message).await?;
    }
    assert_eq!(receive_texts(&mut consumer, 1).await?, ["0"]);
    expect_nothing(&mut consumer).await
}

pub async fn unacknowledged_message_comes_again() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let builder = consumer(&client, &topic, SubType::Shared);
    // Long enough to acknowledge the first message within it on a busy machine.
    let delay = Some(Duration::from_secs(3));
    let mut consumer: TextConsumer = builder.with_unacked_message_resend_delay(delay).build().await?;
    send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 2, 0).await?;
    assert_eq!(receive_texts(&mut consumer, 1).await?, ["0"]);
    assert_eq!(text(&receive(&mut consumer).await?), "1");
    assert_eq!(receive_texts(&mut consumer, 1).await?, ["1"]);
    Ok(())
}

pub async fn dead_letters_go_to_their_topic() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let policy = DeadLetterPolicy { max_redeliver_count: 2, dead_letter_topic: format!("{topic}-s-DLQ") };
    let mut dead = subscribe(&client, &policy.dead_letter_topic, SubType::Shared).await?;
    let builder = consumer(&client, &topic, SubType::Shared).with_dead_letter_policy(policy);
    let mut consumer: TextConsumer = builder.build().await?;
    let ids = send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 1, 1).await?;
    for _ in 0..2 {
        let message = receive(&mut consumer).await?;
        consumer.nack(&message).await?;
    }
    let letter = receive(&mut dead).await?;
    assert_eq!((text(&letter).as_str(), letter.key().as_deref()), ("0", Some("k0")));
    let properties: HashMap<String, String> =
        letter.metadata().properties.iter().map(|each| (each.key.clone(), each.value.clone())).collect();
    assert_eq!(properties["REAL_TOPIC"], topic);
    assert_eq!(properties["ORIGIN_MESSAGE_ID"], format!("{}:{}:-1", ids[0].ledger_id, ids[0].entry_id));
    expect_nothing(&mut consumer).await
}

pub async fn acknowledged_message_does_not_return() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut first = subscribe(&client, &topic, SubType::Shared).await?;
    send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 6, 0).await?;
    for _ in 0..6 {
        let message = receive(&mut first).await?;
        if text(&message) == "3" {
            first.ack(&message).await?;
        }
    }
    first.close().await?;
    let mut second = subscribe(&client, &topic, SubType::Shared).await?;
    let mut again = receive_texts(&mut second, 5).await?;
    again.sort();
    assert_eq!(again, ["0", "1", "2", "4", "5"]);
    expect_nothing(&mut second).await
}

pub async fn cumulative_acknowledgement() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut first = subscribe(&client, &topic, SubType::Exclusive).await?;
    send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 10, 0).await?;
    let mut sixth = receive(&mut first).await?;
    for _ in 0..5 {
        sixth = receive(&mut first).await?;
    }
    first.cumulative_ack(&sixth).await?;
    first.close().await?;
    let mut second = subscribe(&client, &topic, SubType::Exclusive).await?;
    assert_eq!(receive_texts(&mut second, 4).await?, texts(6, 10));
    expect_nothing(&mut second).await
}

pub async fn acknowledging_one_of_a_batch_acknowledges_all() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut first = subscribe(&client, &topic, SubType::Shared).await?;
    send_numbers(&mut produce(&client, &topic, batches(5)).await?, 10, 0).await?;
    // This client names the index, but no set of indexes: Pulsar takes that as the whole entry.
    let message = receive(&mut first).await?;
    first.ack(&message).await?;
    first.close().await?;
    let mut second = subscribe(&client, &topic, SubType::Shared).await?;
    assert_eq!(receive_texts(&mut second, 5).await?, texts(5, 10));
    expect_nothing(&mut second).await
}

pub async fn non_durable_consumer_leaves_no_subscription() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let builder = || consumer(&client, &topic, SubType::Exclusive).with_options(from_earliest().durable(false));
    kept_numbers(&client, &topic, 5).await?;
    for _ in 0..2 {
        let mut consumer: TextConsumer = builder().build().await?;
        assert_eq!(receive_texts(&mut consumer, 5).await?, texts(0, 5));
        consumer.close().await?;
    }
    Ok(())
}

pub async fn unsubscribed_subscription_is_gone() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut first = subscribe(&client, &topic, SubType::Exclusive).await?;
    let mut producer = produce(&client, &topic, ProducerOptions::default()).await?;
    send_numbers(&mut producer, 3, 0).await?;
    first.unsubscribe().await?;
    let builder = consumer(&client, &topic, SubType::Exclusive).with_options(ConsumerOptions::default());
    let mut second: TextConsumer = builder.build().await?;
    expect_nothing(&mut second).await?;
    send_numbers(&mut producer, 1, 0).await?;
    assert_eq!(receive_texts(&mut second, 1).await?, ["0"]);
    Ok(())
}

pub async fn small_queue_gets_everything() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut consumer: TextConsumer = consumer(&client, &topic, SubType::Shared).with_batch_size(1).build().await?;
    send_numbers(&mut produce(&client, &topic, batches(7)).await?, 70, 0).await?;
    assert_eq!(receive_texts(&mut consumer, 70).await?, texts(0, 70));
    Ok(())
}
