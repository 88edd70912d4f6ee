//! What sees every answer: the figures, the decision records, and the shadows.

use std::io;
use std::time::Duration;

use culvert_agent::clock::Clock;
use prometheus_client::registry::Registry;
use uuid::Uuid;

use super::call::Failed;
use super::live::Decider;
use super::meters::Meters;
use super::question::{Answer, Question};
use super::records::{Record, Records, RecordsConfig};
use super::shadows::Shadows;

pub struct Observer {
    pub clock: Clock,
    pub meters: Meters,
    pub shadows: Shadows,
    pub records: Option<Records>,
}

impl Observer {
    /// Registers the figures and opens the file of records, where there is to be one.
    pub fn open(clock: Clock, registry: &mut Registry, records: &RecordsConfig) -> io::Result<Self> {
        let meters = Meters::new(registry);
        let records = Records::open(records, meters.records_written.clone(), meters.records_dropped.clone())?;
        let shadows = Shadows::start(meters.shadows_dropped.clone())?;
        Ok(Self { clock, meters, shadows, records })
    }

    pub fn note(
        &self,
        generation: u64,
        request_id: Option<Uuid>,
        decider: &Decider,
        question: &Question,
        answer: &Result<Answer, Failed>,
        took: Duration,
    ) {
        decider.meters.count(answer, took);
        let Some(records) = &self.records else { return };
        if !records.want(question, request_id) {
            return;
        }
        let (question, secrets) = question.clone().masked();
        records.write(Record {
            time: self.clock.now(),
            request_id,
            generation,
            module: decider.module.clone(),
            question,
            secrets,
            answer: match answer {
                Ok(answer) => Ok(answer.clone()),
                Err(failed) => Err(failed.to_string()),
            },
            took,
        });
    }

    /// Writes down what is still to be written.
    pub fn close(&self) {
        self.shadows.close();
        self.records.iter().for_each(Records::close);
    }
}
