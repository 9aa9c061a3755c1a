//! Streamed pieces add up to the whole text and never hold half a character.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test may

use std::path::Path;
use std::sync::LazyLock;

use greenroom_tokens::Tokenizer;
use proptest::prelude::*;

static TINY: LazyLock<Tokenizer> = LazyLock::new(|| {
    Tokenizer::from_dir(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokens/tiny")).unwrap()
});

fn streamed(ids: &[u32], skip_special: bool) -> (Vec<String>, String) {
    let mut stream = TINY.stream(skip_special);
    let mut pieces: Vec<String> = ids.iter().map(|id| stream.push(&TINY, *id).unwrap()).collect();
    let whole_so_far = pieces.concat();
    pieces.push(stream.finish(&TINY).unwrap());
    (pieces, whole_so_far)
}

proptest! {
    #[test]
    fn pieces_of_a_text_add_up_to_it(text in "(\\PC|\n|<\\|im_end\\|>|the file){0,40}") {
        let ids = TINY.encode(&text, false).unwrap();
        let (pieces, so_far) = streamed(&ids, false);
        prop_assert_eq!(pieces.concat(), text.clone());
        prop_assert_eq!(so_far.trim_end_matches('\u{fffd}'), text.trim_end_matches('\u{fffd}'));
    }

    #[test]
    fn pieces_of_any_ids_add_up_to_their_text(ids in prop::collection::vec(0..TINY.vocabulary_size() + 2, 0..60)) {
        let (pieces, _) = streamed(&ids, true);
        prop_assert_eq!(pieces.concat(), TINY.decode(&ids, true).unwrap());
    }
}

#[test]
fn half_a_character_is_held_back() {
    let ids = TINY.encode("三", false).unwrap();
    assert!(ids.len() > 1, "the fixture has no token for this character");
    let (pieces, _) = streamed(&ids, false);
    let expected: Vec<&str> = std::iter::repeat_n("", ids.len() - 1).chain(["三", ""]).collect();
    assert_eq!(pieces, expected);
}
