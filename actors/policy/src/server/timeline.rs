//! Dates and request ids of the server.
//!
//! SGLang reports dates as float seconds since 1970 beside durations; both come here from one tokio clock, so that they
//! agree with each other and stand still with it in virtual time. Request ids are 32 hexadecimal digits like SGLang's; they
//! come from the seed and a counter, so that equal runs have equal ids.

use std::sync::atomic::{AtomicU64, Ordering};

use greenroom_core::{Clock, Seed};
use tokio::time::Instant;

/// Turns moments into dates.
#[derive(Debug, Clone, Copy)]
pub struct Timeline {
    origin_seconds: f64,
    origin: Instant,
}

impl Timeline {
    /// Begins now.
    #[must_use]
    pub fn new(clock: &Clock) -> Self {
        Self { origin_seconds: clock.now_ms() as f64 / 1000.0, origin: Instant::now() }
    }

    /// Seconds since 1970 at a moment.
    #[must_use]
    pub fn date(&self, moment: Instant) -> f64 {
        self.origin_seconds + moment.saturating_duration_since(self.origin).as_secs_f64()
    }

    /// Seconds since 1970 now.
    #[must_use]
    pub fn now(&self) -> f64 {
        self.date(Instant::now())
    }

    /// Now, as ISO 8601 in UTC with microseconds.
    #[must_use]
    pub fn now_iso(&self) -> String {
        let now = self.now();
        let seconds = now as i64;
        let (year, month, day) = civil_date(seconds.div_euclid(86_400));
        let of_day = seconds.rem_euclid(86_400);
        let micros = (now.fract() * 1e6) as u32;
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+00:00")
    }
}

/// Year, month, day of a day number counted from 1970-01-01 (Howard Hinnant's `civil_from_days`).
fn civil_date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Gives out request ids.
#[derive(Debug)]
pub struct RequestIds {
    seed: Seed,
    given: AtomicU64,
}

impl RequestIds {
    /// Ids of this seed.
    #[must_use]
    pub fn new(seed: Seed) -> Self {
        Self { seed, given: AtomicU64::new(0) }
    }

    /// The next id.
    pub fn next(&self) -> String {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        let half = |purpose: &str| self.seed.child_numbered(purpose, number).value();
        format!("{:016x}{:016x}", half("request id, high"), half("request id, low"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn day_numbers_become_dates() {
        for (days, date) in [(0, (1970, 1, 1)), (-1, (1969, 12, 31)), (11_016, (2000, 2, 29)), (20_786, (2026, 11, 29))]
        {
            assert_eq!(civil_date(days), date);
        }
    }

    #[test]
    fn request_ids_are_32_digits_and_differ() {
        let ids = RequestIds::new(Seed::new(1));
        let drawn: std::collections::BTreeSet<String> = (0..1000).map(|_| ids.next()).collect();
        assert_eq!(drawn.len(), 1000);
        assert!(drawn.iter().all(|id| id.len() == 32));
    }
}
