//! The messages that carry datagrams between node and agent: what is written is read, and nothing breaks the reader.

use std::net::SocketAddr;

use bytes::Bytes;
use culvert_wire::clock::Clock;
use culvert_wire::data2::datagram::{CloseReason, Datagram, MOST_OVERHEAD, Open};
use culvert_wire::data2::parts::Parts;
use proptest::prelude::*;
use uuid::Uuid;

fn payload() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..3000).prop_map(Bytes::from)
}

fn flow() -> impl Strategy<Value = u64> {
    prop_oneof![0..200_u64, 0..1_u64 << 62]
}

fn address() -> impl Strategy<Value = SocketAddr> {
    let ip = any::<std::net::IpAddr>().prop_map(|ip| ip.to_canonical());
    (ip, 1..=u16::MAX).prop_map(SocketAddr::from)
}

/// Both addresses of a flow are of one family.
fn addresses() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    (address(), address()).prop_filter("they are of one family", |(a, b)| a.is_ipv4() == b.is_ipv4())
}

fn datagram() -> impl Strategy<Value = Datagram> {
    let open = (flow(), any::<(u128, i64)>(), 1_u128.., any::<bool>(), addresses(), prop::option::of(payload()));
    let open = open.prop_map(|(flow, (tunnel, epoch), port, is_own, (visitor, local), payload)| {
        let port_id = (!is_own).then_some(Uuid::from_u128(port));
        Datagram::Open(Open { flow, tunnel_id: Uuid::from_u128(tunnel), epoch, port_id, visitor, local, payload })
    });
    let reason = prop_oneof![
        Just(CloseReason::Idle),
        Just(CloseReason::Refused),
        Just(CloseReason::Fenced),
        Just(CloseReason::UnknownPort),
        Just(CloseReason::Bounds),
        Just(CloseReason::TargetRefused),
        Just(CloseReason::Other),
    ];
    prop_oneof![
        (flow(), payload()).prop_map(|(flow, payload)| Datagram::Data { flow, payload }),
        open,
        flow().prop_map(|flow| Datagram::Opened { flow }),
        (flow(), any::<(u16, bool)>(), payload()).prop_map(|(flow, (id, is_second), payload)| Datagram::Part {
            flow,
            id,
            is_second,
            payload
        }),
        (flow(), reason).prop_map(|(flow, reason)| Datagram::Close { flow, reason }),
    ]
}

proptest! {
    #[test]
    fn datagrams_round_trip(datagram in datagram()) {
        prop_assert_eq!(Datagram::parse(datagram.bytes()), Ok(datagram));
    }

    /// A datagram that was cut is refused, or has a shorter payload.
    #[test]
    fn cut_and_arbitrary_datagrams_are_answered(
        datagram in datagram(),
        length in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let whole = datagram.bytes();
        let cut = whole.slice(..length.index(whole.len() + 1));
        if let Ok(read) = Datagram::parse(cut.clone()) {
            prop_assert_eq!(read.bytes(), cut);
        }
        let _ = Datagram::parse(Bytes::from(noise));
    }

    /// Two parts are the payload again, in whichever order they come.
    #[test]
    fn parts_join_in_any_order(flow in flow(), id in any::<u16>(), payload in payload(), is_reversed in any::<bool>()) {
        let most = payload.len().div_ceil(2) + MOST_OVERHEAD;
        let split = Datagram::Data { flow, payload: payload.clone() }.split(most, id);
        let mut split = split.expect("it fits two messages");
        if is_reversed {
            split.reverse();
        }
        let (mut parts, now) = (Parts::default(), Clock::system().moment());
        let mut joined = Vec::new();
        for part in split {
            prop_assert!(part.bytes().len() <= most);
            match Datagram::parse(part.bytes()) {
                Ok(Datagram::Part { id, is_second, payload, .. }) => {
                    joined.extend(parts.take(id, is_second, payload, now).0);
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
        prop_assert_eq!(joined, vec![payload]);
    }

    /// However parts come, a few wait at most, and each is joined once, waits, or was dropped.
    #[test]
    fn few_parts_wait(arrivals in prop::collection::vec((0..6_u16, any::<bool>()), 0..60)) {
        let (mut parts, now) = (Parts::default(), Clock::system().moment());
        let (mut joined, mut dropped) = (0, 0);
        for (id, is_second) in &arrivals {
            let (whole, lost) = parts.take(*id, *is_second, Bytes::from_static(b"x"), now);
            joined += usize::from(whole.is_some());
            dropped += lost;
        }
        let waiting = arrivals.len() - 2 * joined - dropped;
        prop_assert!(waiting <= 4, "{waiting} wait");
    }
}
