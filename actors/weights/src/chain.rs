//! Which published versions lead from what is held to what is wanted: pure.

use std::collections::BTreeMap;

use greenroom_messages::WeightVersion;

/// What a published version is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// What it is a delta against; `None` for a full one.
    pub base: Option<WeightVersion>,
    /// Bytes of its payload.
    pub bytes: u64,
}

/// The versions to apply, in order, from `held` to `wanted`: the fewest bytes. Empty when `wanted` is held; `None` when no
/// chain leads there. A full version needs nothing before it.
pub fn plan(
    links: &BTreeMap<WeightVersion, Link>,
    held: Option<&WeightVersion>,
    wanted: &WeightVersion,
) -> Option<Vec<WeightVersion>> {
    // Each version has one base, so there is one way back: walk it, and stop at the first place where one may begin. The
    // bytes only grow on the way back, so the first place is the cheapest.
    let mut chain = Vec::new();
    let mut at = wanted;
    while Some(at) != held {
        let link = links.get(at)?;
        chain.push(at.clone());
        if chain.len() > links.len() {
            return None;
        }
        match &link.base {
            None => break,
            Some(base) => at = base,
        }
    }
    chain.reverse();
    Some(chain)
}

#[cfg(test)]
mod tests {
    use greenroom_messages::RunId;

    use super::*;

    fn version(number: u64) -> WeightVersion {
        WeightVersion { run: RunId::new("run"), number }
    }

    #[test]
    fn the_cheapest_chain_is_found_and_a_gap_is_no_chain() {
        let link = |base: Option<u64>| Link { base: base.map(version), bytes: 1 };
        let links = BTreeMap::from([
            (version(0), link(None)),
            (version(1), link(Some(0))),
            (version(2), link(Some(1))),
            (version(3), link(None)),
            (version(4), link(Some(3))),
            (version(6), link(Some(5))),
        ]);
        let numbers = |held: Option<u64>, wanted: u64| {
            let chain = plan(&links, held.map(version).as_ref(), &version(wanted))?;
            Some(chain.iter().map(|version| version.number).collect::<Vec<_>>())
        };
        assert_eq!(numbers(None, 2), Some(vec![0, 1, 2]));
        assert_eq!(numbers(Some(1), 2), Some(vec![2]));
        assert_eq!(numbers(Some(2), 2), Some(vec![]));
        assert_eq!(numbers(Some(2), 4), Some(vec![3, 4]), "a full version shortens the way");
        assert_eq!(numbers(Some(4), 2), Some(vec![0, 1, 2]), "what is held is of no use");
        assert_eq!(numbers(None, 6), None, "5 is missing");
        assert_eq!(numbers(Some(5), 6), Some(vec![6]));
        assert_eq!(numbers(None, 9), None);
    }
}
