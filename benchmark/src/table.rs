//! The table of `benchmark/README.md`, made from the result files.
//!
//! It stands between two markers; everything else in the page is written by hand. A test compares page and files.

use std::fmt::Write;

use anyhow::Context;

use crate::result::{BenchResult, Row, home};

const BEGIN: &str = "<!-- results: begin (made by `cargo bench-table`) -->";
const END: &str = "<!-- results: end -->";

/// Brings the page up to date. Says whether it changed.
pub fn update() -> anyhow::Result<bool> {
    let path = home().join("README.md");
    let page = std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let new = with_results(&page, &BenchResult::load_all()?)?;
    if new == page {
        return Ok(false);
    }
    std::fs::write(&path, new).with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(true)
}

/// The page with these results between its markers.
fn with_results(page: &str, results: &[BenchResult]) -> anyhow::Result<String> {
    let split = page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = split.with_context(|| format!("README.md lacks its markers {BEGIN:?} and {END:?}"))?;
    let sections: Vec<String> = results.iter().map(section).collect();
    Ok(format!("{before}{BEGIN}\n\n{}\n{END}{after}", sections.join("\n")))
}

/// The results of one bench.
pub fn section(result: &BenchResult) -> String {
    let mut text = format!("### {}\n\n`{}` on {}.\n\n", result.bench, result.command, result.machine);
    text.push_str("| metric | unit | ours | peer | ratio | limit | goal | holds |\n");
    text.push_str("|---|---|--:|--:|--:|--:|---|---|\n");
    let mut peers: Vec<&str> = Vec::new();
    for row in &result.rows {
        let note = row.peer_name.as_deref().map(|name| {
            let place = peers.iter().position(|known| *known == name).unwrap_or_else(|| {
                peers.push(name);
                peers.len() - 1
            });
            format!(" ({})", place + 1)
        });
        text.push_str(&line(row, &note.unwrap_or_default()));
    }
    text.push('\n');
    for (number, peer) in (1..).zip(peers) {
        // writing into a String cannot fail
        let _ = writeln!(text, "({number}) {peer}  ");
    }
    text
}

fn line(row: &Row, note: &str) -> String {
    let optional = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
    format!(
        "| {} | {} | {} | {}{note} | {} | {} | {} | {} |\n",
        row.metric,
        row.unit,
        number(row.ours),
        optional(row.peer),
        optional(row.ratio),
        optional(row.limit),
        row.goal.to_string().replace(">=", "≥").replace("<=", "≤"),
        if row.holds { "yes" } else { "**no**" },
    )
}

/// A value for people.
fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 { format!("{value:.1e}") } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Goal, PeerValue};

    #[test]
    fn the_readme_shows_the_results_that_are_in_the_files() {
        let page = std::fs::read_to_string(home().join("README.md")).unwrap();
        let new = with_results(&page, &BenchResult::load_all().unwrap()).unwrap();
        assert!(new == page, "benchmark/README.md is not up to date: run `cargo bench-table`");
    }

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let peer = |name| Some(PeerValue { value: 2.0, name });
        let row = |name| Row::new("speed", "1/s", 1.0, peer(name), Goal::RatioAtLeast(1.0));
        let rows = vec![row("a 1"), row("b 2"), row("a 1").with_limit(0.000_5)];
        let result = BenchResult { bench: "b".into(), command: "c".into(), machine: "m".into(), rows };
        let page = with_results(&format!("x {BEGIN} former {END} y"), std::slice::from_ref(&result)).unwrap();
        assert!(page.starts_with("x <!--") && page.ends_with("--> y") && !page.contains("former"), "{page}");
        assert!(page.contains("| speed | 1/s | 1 | 2 (1) | 0.5 | 5.0e-4 | ratio ≥ 1 | **no** |"), "{page}");
        assert!(page.contains("(1) a 1  \n(2) b 2  \n"), "{page}");
        assert_eq!(with_results(&page, &[result]).unwrap(), page);
        assert!(with_results("no markers", &[]).is_err());
    }
}
