//! What the benchmarks share. Figures are ratios of things that are measured in turns in one run,
//! for the machines are noisy.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

pub mod agents;
pub mod bare;
pub mod fleet;
pub mod load;
pub mod path;
pub mod rathole;
pub mod server;
pub mod service;

use std::time::{Duration, Instant};

/// Things to measure, each with its name.
pub type Contest<'a> = Vec<(&'a str, Box<dyn FnMut() + 'a>)>;

/// The median time of one call of each, measured in turns.
pub fn race(mut contest: Contest<'_>) -> Vec<(String, Duration)> {
    const ROUNDS: usize = 31;
    const ROUND: Duration = Duration::from_millis(20);
    let calls: Vec<u32> = contest.iter_mut().map(|(_, call)| calls_in(ROUND, call)).collect();
    let mut times = vec![Vec::new(); contest.len()];
    for _ in 0..ROUNDS {
        for (index, (_, call)) in contest.iter_mut().enumerate() {
            let start = Instant::now();
            (0..calls[index]).for_each(|_| call());
            times[index].push(start.elapsed() / calls[index]);
        }
    }
    contest.iter().zip(times).map(|((name, _), times)| ((*name).to_owned(), median(times))).collect()
}

fn calls_in(time: Duration, call: &mut dyn FnMut()) -> u32 {
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < time {
        call();
        calls += 1;
    }
    calls
}

pub fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap());
    values[values.len() / 2]
}

/// One line: a figure, the bar that is set for it, and whether it holds.
pub fn verdict(what: &str, figure: f64, bar: &str, holds: bool) {
    println!("  {what:<58} {figure:>6.2}   {bar:<12} {}", if holds { "holds" } else { "MISSED" });
}
