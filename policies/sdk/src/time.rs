//! Times of day and weekdays, in a time zone that is given as an offset from UTC.
//!
//! By hand, because chrono would add more code to a module than most policies have.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error};

const DAY: i64 = 86_400;

/// A moment, in seconds since 1970-01-01T00:00:00Z. As a setting or a fact it is a text of RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

/// An offset from UTC, in seconds. As a setting it is a text: `+02:00`, `-05:30` or `Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset(pub i64);

/// A time of day, in seconds since midnight. As a setting it is a text: `08:30`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// A day of the Gregorian calendar; as a text `2026-01-31`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    pub year: i64,
    pub month: u32,
    pub day: u32,
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl Weekday {
    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Monday => "monday",
            Self::Tuesday => "tuesday",
            Self::Wednesday => "wednesday",
            Self::Thursday => "thursday",
            Self::Friday => "friday",
            Self::Saturday => "saturday",
            Self::Sunday => "sunday",
        }
    }

    /// Monday to Friday.
    pub fn is_workday(self) -> bool {
        !matches!(self, Self::Saturday | Self::Sunday)
    }
}

impl Time {
    pub fn weekday(self, zone: Offset) -> Weekday {
        use Weekday::{Friday, Monday, Saturday, Sunday, Thursday, Tuesday, Wednesday};
        // 1970-01-01 was a Thursday.
        let days = [Thursday, Friday, Saturday, Sunday, Monday, Tuesday, Wednesday];
        days[(self.0 + zone.0).div_euclid(DAY).rem_euclid(7) as usize]
    }

    pub fn time_of_day(self, zone: Offset) -> TimeOfDay {
        TimeOfDay((self.0 + zone.0).rem_euclid(DAY) as u32)
    }

    pub fn date(self, zone: Offset) -> Date {
        date((self.0 + zone.0).div_euclid(DAY))
    }

    /// Seconds from `earlier` to this moment.
    pub fn since(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }
}

impl TimeOfDay {
    pub fn hour(self) -> u32 {
        self.0 / 3600
    }

    /// Of its hour.
    pub fn minute(self) -> u32 {
        self.0 / 60 % 60
    }

    /// Whether it lies in a period, from its beginning and before its end. One that ends before it begins goes past
    /// midnight: from 22:00 to 06:00.
    pub fn is_between(self, from: Self, until: Self) -> bool {
        if from <= until { from <= self && self < until } else { from <= self || self < until }
    }
}

/// A text that is no time, offset or time of day.
#[derive(Debug)]
pub struct ParseError(&'static str);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "must be {}", self.0)
    }
}

/// The number that the digits from `start` on are, up to a largest one.
fn digits(text: &str, start: usize, count: usize, most: i64) -> Option<i64> {
    let digits = text.get(start..start + count).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse().ok().filter(|number| *number <= most)
}

fn is_at(text: &str, index: usize, letters: &[u8]) -> bool {
    text.as_bytes().get(index).is_some_and(|letter| letters.contains(letter))
}

impl FromStr for Time {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse_time(text).ok_or(ParseError("a time of RFC 3339, as 2026-01-31T08:30:00Z"))
    }
}

fn parse_time(text: &str) -> Option<Time> {
    let (year, month, day) = (digits(text, 0, 4, 9999)?, digits(text, 5, 2, 12)?, digits(text, 8, 2, 31)?);
    let (hour, minute, second) = (digits(text, 11, 2, 23)?, digits(text, 14, 2, 59)?, digits(text, 17, 2, 60)?);
    let separated = [(4, b"-"), (7, b"-"), (13, b":"), (16, b":")].iter().all(|(at, sign)| is_at(text, *at, *sign));
    if !separated || !is_at(text, 10, b"Tt ") || month == 0 || day == 0 {
        return None;
    }
    let mut rest = text.get(19..)?;
    if let Some(fraction) = rest.strip_prefix('.') {
        rest = fraction.trim_start_matches(|letter: char| letter.is_ascii_digit());
    }
    let zone: Offset = rest.parse().ok()?;
    // A month has as many days as the calendar gives it.
    if date(days(year, month, day)).day != day as u32 {
        return None;
    }
    Some(Time(days(year, month, day) * DAY + hour * 3600 + minute * 60 + second - zone.0))
}

/// Days since 1970-01-01 in the Gregorian calendar; a year begins in March here, so that the leap day is its last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468
}

/// The inverse of [`days`].
fn date(days: i64) -> Date {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    Date { year, month: month as u32, day: day as u32 }
}

impl FromStr for Offset {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text == "Z" || text == "z" {
            return Ok(Self(0));
        }
        let sign = if text.starts_with('-') { -1 } else { 1 };
        let offset = digits(text, 1, 2, 23).zip(digits(text, 4, 2, 59));
        let well_formed = text.len() == 6 && is_at(text, 0, b"+-") && is_at(text, 3, b":");
        let offset = offset.filter(|_| well_formed).map(|(hours, minutes)| Self(sign * (hours * 3600 + minutes * 60)));
        offset.ok_or(ParseError("an offset from UTC, as +02:00 or Z"))
    }
}

impl FromStr for TimeOfDay {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let time =
            digits(text, 0, 2, 24).zip(digits(text, 3, 2, 59)).filter(|_| text.len() == 5 && is_at(text, 2, b":"));
        let time = time.map(|(hours, minutes)| hours * 3600 + minutes * 60).filter(|seconds| *seconds <= DAY);
        time.map(|seconds| Self(seconds as u32)).ok_or(ParseError("a time of day from 00:00 to 24:00, as 08:30"))
    }
}

macro_rules! from_text {
    ($($type:ty)*) => {
        $(impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        })*
    };
}

from_text!(Time Offset TimeOfDay);

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Time {
        text.parse().unwrap()
    }

    #[test]
    fn times_of_rfc_3339_are_seconds_since_1970() {
        assert_eq!(time("1970-01-01T00:00:00Z"), Time(0));
        assert_eq!(time("2024-02-29T23:59:59.999999Z"), Time(1_709_251_199));
        assert_eq!(time("2000-03-01T00:00:00Z").since(time("2000-02-28T00:00:00Z")), 2 * DAY);
        assert_eq!(time("1900-03-01T00:00:00Z").since(time("1900-02-28T00:00:00Z")), DAY);
        assert_eq!(time("2026-11-22T01:30:00+02:00"), time("2026-11-21T23:30:00Z"));
        for wrong in [
            "",
            "2026-11-22",
            "2026-13-01T00:00:00Z",
            "2026-02-31T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "é",
        ] {
            assert!(wrong.parse::<Time>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn date_is_that_of_the_time_zone() {
        let (new_year, zone) = (time("2023-12-31T23:30:00Z"), "+02:00".parse().unwrap());
        assert_eq!(new_year.date(Offset(0)).to_string(), "2023-12-31");
        assert_eq!(new_year.date(zone).to_string(), "2024-01-01");
        // Every day of two centuries comes after the one before, and is found again by its text.
        let mut last = None;
        for day in (0..200 * 366).map(|day| Time(day * DAY - 100 * 365 * DAY)) {
            let date = day.date(Offset(0));
            assert!(last < Some(date), "{date}");
            assert_eq!(time(&format!("{date}T00:00:00Z")), day);
            last = Some(date);
        }
    }

    #[test]
    fn weekday_and_time_of_day_depend_on_the_offset() {
        let (sunday, zone) = (time("2026-11-22T23:30:00Z"), "+02:00".parse().unwrap());
        assert_eq!((sunday.weekday(Offset(0)), sunday.weekday(zone)), (Weekday::Sunday, Weekday::Monday));
        assert_eq!((sunday.time_of_day(zone).hour(), sunday.time_of_day(Offset(0)).hour()), (1, 23));
        assert_eq!(time("1969-12-31T23:00:00Z").weekday(Offset(0)), Weekday::Wednesday);
        assert!(Weekday::Friday.is_workday() && !Weekday::Saturday.is_workday());
    }

    #[test]
    fn period_can_go_past_midnight() {
        let at = |text: &str| text.parse::<TimeOfDay>().unwrap();
        let within = |time, from, until| at(time).is_between(at(from), at(until));
        assert!(within("08:00", "08:00", "18:00") && !within("18:00", "08:00", "18:00"));
        assert!(within("23:00", "22:00", "06:00") && within("05:59", "22:00", "06:00"));
        assert!(!within("06:00", "22:00", "06:00") && within("23:59", "22:00", "24:00"));
        assert!("8:00".parse::<TimeOfDay>().is_err() && "24:01".parse::<TimeOfDay>().is_err());
        assert!("+25:00".parse::<Offset>().is_err() && "02:00".parse::<Offset>().is_err());
    }
}
