//! Congestion control that does not fall below a floor. On a path that loses packets for other reasons than congestion, as
//! radio does, the window would shrink to two packets, and datagrams would wait for round trips.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;

/// Bytes that may always be in flight: 5 Mbit/s at a round trip of 50 ms.
const FLOOR: u64 = 32 * 1024;

/// Cubic (RFC 9438) with a floor.
#[derive(Debug, Default)]
pub(crate) struct FloorConfig(Arc<CubicConfig>);

impl ControllerFactory for FloorConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Floor(self.0.clone().build(now, current_mtu)))
    }
}

struct Floor(Box<dyn Controller>);

impl Controller for Floor {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.0.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.0.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_acked: Option<u64>) {
        self.0.on_end_acks(now, in_flight, app_limited, largest_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.0.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.0.window().max(FLOOR)
    }

    fn metrics(&self) -> ControllerMetrics {
        self.0.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self(self.0.clone_box()))
    }

    fn initial_window(&self) -> u64 {
        self.0.initial_window().max(FLOOR)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
