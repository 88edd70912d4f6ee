//! A device that is silent for longer than its leases, and then goes on: meanwhile its tunnel has gone to another device.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::asker::{ANSWERED_WITHIN, Random, answer_within};
use super::faults::until_none;
use super::history::History;
use super::load::Client;
use super::stage::Stage;

/// Visitors that are there when it falls silent.
const VISITORS: u64 = 4;
/// They wait until it goes on.
const PATIENCE: Duration = Duration::from_mins(5);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// For how long it is watched when it goes on.
const WATCHED_FOR: Duration = Duration::from_secs(3);

/// Suspends a device of a client of this number, whose tunnel goes to its other device. The error is what did not come.
pub async fn silence(stage: Arc<Stage>, history: Arc<History>, seed: u64, number: usize) -> Result<(), String> {
    let mut client = Client::new(&stage, &history, Random::of(seed, 400), number).await;
    let names = [0, 1].map(|which| format!("device-{}", 2 * number + which));
    until_started(&history, &mut client, 0).await?;
    let end = CancellationToken::new();
    let _guard = end.clone().drop_guard();
    for visitor in 0..VISITORS {
        tokio::spawn(client.visitor(Random::of(seed, 300 + visitor), PATIENCE).visit(end.clone()));
    }
    until_answered(&history, client.tunnel, &names[0]).await?;

    let device = &stage.devices[2 * number];
    history.note().silent.push(device.id.clone());
    let program = device.program.lock().await;
    let program = program.as_ref().unwrap();
    program.signal("-STOP").await;
    let online = format!("SELECT count(*) FROM device_presence WHERE device_id = '{}' AND online", device.id);
    until_none(&stage, &history, &online).await;
    let taken_over = async {
        until_started(&history, &mut client, 1).await?;
        tokio::spawn(client.visitor(Random::of(seed, 299), answer_within()).visit(end.clone()));
        until_answered(&history, client.tunnel, &names[1]).await
    };
    let taken_over = taken_over.await;
    history.clock.sleep(WATCHED_FOR).await;
    program.signal("-CONT").await;
    history.clock.sleep(WATCHED_FOR).await;
    taken_over
}

pub async fn until_started(history: &History, client: &mut Client, device: usize) -> Result<(), String> {
    let begun = history.clock.moment();
    while !client.start(device).await {
        if history.clock.moment().since(begun) > ANSWERED_WITHIN {
            return Err(format!("silence: {} does not start", client.tunnel));
        }
        history.clock.sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Waits until somebody is answered by a device.
async fn until_answered(history: &History, tunnel: Uuid, device: &str) -> Result<(), String> {
    let begun = history.clock.moment();
    while !history.note().visits.iter().any(|visit| visit.tunnel == tunnel && visit.device == device) {
        if history.clock.moment().since(begun) > ANSWERED_WITHIN {
            return Err(format!("silence: nobody is answered by {device}"));
        }
        history.clock.sleep(LOOK_EVERY).await;
    }
    Ok(())
}
