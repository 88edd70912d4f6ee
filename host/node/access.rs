//! Who is let in to one tunnel, and who has to go when its rules change.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::countries::Countries;
use super::lock;
use crate::domain::access::AccessRules;

pub struct Access {
    countries: Arc<Countries>,
    door: Mutex<Door>,
}

/// Rules and visitors under one lock: whoever comes in while the rules change is judged by the new
/// ones, if not at the door then right behind it.
#[derive(Default)]
struct Door {
    version: i64,
    rules: AccessRules,
    inside: HashMap<u64, (IpAddr, CancellationToken)>,
    next: u64,
}

/// A visitor who was let in. Dropped, they are gone.
pub struct Inside {
    access: Arc<Access>,
    number: u64,
    /// Cancelled when the rules turn against them, or their port is taken away.
    pub out: CancellationToken,
}

impl Access {
    pub fn new(countries: Arc<Countries>, version: i64, rules: AccessRules) -> Arc<Self> {
        Arc::new(Self { countries, door: Mutex::new(Door { version, rules, ..Door::default() }) })
    }

    pub fn version(&self) -> i64 {
        lock(&self.door).version
    }

    /// Lets a visitor in at a port, for as long as that is open; or not.
    pub fn enter(self: &Arc<Self>, visitor: IpAddr, port: &CancellationToken) -> Option<Inside> {
        let mut door = lock(&self.door);
        if !door.rules.admit(visitor, |address| self.countries.of(address)) {
            return None;
        }
        let (number, out) = (door.next, port.child_token());
        door.next += 1;
        door.inside.insert(number, (visitor, out.clone()));
        Some(Inside { access: self.clone(), number, out })
    }

    /// From now on other rules hold, for those who are inside as well.
    pub fn replace(&self, version: i64, rules: AccessRules) {
        let mut door = lock(&self.door);
        (door.version, door.rules) = (version, rules);
        self.turn_out(&door);
    }

    /// The countries are known anew.
    pub fn judge_again(&self) {
        self.turn_out(&lock(&self.door));
    }

    fn turn_out(&self, door: &Door) {
        for (visitor, out) in door.inside.values() {
            if !door.rules.admit(*visitor, |address| self.countries.of(address)) {
                out.cancel();
            }
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        lock(&self.access.door).inside.remove(&self.number);
    }
}
