//! Payloads that came in two parts.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::clock::Moment;

/// How long a part waits for the other one.
const WAITS: Duration = Duration::from_secs(1);
/// Most parts of one flow that wait.
const MOST: usize = 4;

/// The parts of one flow that wait for their other half.
#[derive(Default)]
pub struct Parts {
    waiting: VecDeque<Part>,
}

struct Part {
    came: Moment,
    id: u16,
    is_second: bool,
    payload: Bytes,
}

impl Parts {
    /// Takes a part. Returns the payload if it is complete, and how many parts were dropped.
    pub fn take(&mut self, id: u16, is_second: bool, payload: Bytes, now: Moment) -> (Option<Bytes>, usize) {
        let before = self.waiting.len();
        self.waiting.retain(|part| now.since(part.came) < WAITS);
        let mut dropped = before - self.waiting.len();
        let other = self.waiting.iter().position(|part| part.id == id && part.is_second != is_second);
        if let Some(other) = other.and_then(|at| self.waiting.remove(at)) {
            let (first, second) = if is_second { (other.payload, payload) } else { (payload, other.payload) };
            let mut whole = BytesMut::with_capacity(first.len() + second.len());
            whole.extend_from_slice(&first);
            whole.extend_from_slice(&second);
            return (Some(whole.freeze()), dropped);
        }
        if self.waiting.len() >= MOST {
            self.waiting.pop_front();
            dropped += 1;
        }
        self.waiting.push_back(Part { came: now, id, is_second, payload });
        (None, dropped)
    }
}
