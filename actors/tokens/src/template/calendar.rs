//! Dates for `strftime_now`: the C library's directives that chat templates use, in UTC and English.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// The date `now_ms` (milliseconds since 1970) written as `format` says; an unknown directive stays as it is.
pub(super) fn strftime(format: &str, now_ms: u64) -> String {
    let seconds = now_ms / 1000;
    let days = (seconds / 86_400) as i64;
    let (year, month, day) = civil_from_days(days);
    let weekday = DAYS[(days + 3).rem_euclid(7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let mut text = String::with_capacity(format.len() + 16);
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('Y') => text.push_str(&year.to_string()),
            Some('y') => text.push_str(&format!("{:02}", year % 100)),
            Some('m') => text.push_str(&format!("{month:02}")),
            Some('d') => text.push_str(&format!("{day:02}")),
            Some('e') => text.push_str(&format!("{day:2}")),
            Some('b') => text.push_str(&month_name[..3]),
            Some('B') => text.push_str(month_name),
            Some('a') => text.push_str(&weekday[..3]),
            Some('A') => text.push_str(weekday),
            Some('H') => text.push_str(&format!("{hour:02}")),
            Some('M') => text.push_str(&format!("{minute:02}")),
            Some('S') => text.push_str(&format!("{second:02}")),
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }
    text
}

/// Year, month and day of a day number since 1970-01-01, in the proleptic Gregorian calendar. Counts from March, so that
/// the leap day is a year's last (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * march_month + 2) / 5 + 1) as u32;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 } as u32;
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_the_c_library_writes_them() {
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %A", "1970-01-01 00:00:00 Thursday"),
            (951_827_696_000, "%d %b %Y", "29 Feb 2000"),
            (1_795_953_599_000, "%B %e, %y %a 100%% %q", "November 29, 26 Sun 100% %q"),
        ];
        for (now_ms, format, expected) in cases {
            assert_eq!(strftime(format, now_ms), expected);
        }
    }
}
