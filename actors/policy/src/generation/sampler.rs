//! From one row of logits to a token and its logprob, in plain arithmetic.
//!
//! The order is SGLang's: penalties, temperature, softmax; the logprobs that are reported are those of this softmax; then
//! top-k, top-p and min-p narrow the choice. Every row is computed alone, in the order of the vocabulary, so that the result
//! depends on the row and the request's own random numbers only.

use std::collections::BTreeMap;

use greenroom_core::Random;
use rand::Rng;

use super::request::{GREEDY_BELOW_TEMPERATURE, SamplingParams, TokenLogprob};

/// What a request has seen so far, as far as penalties care.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// How often each token was sampled.
    pub output_counts: BTreeMap<u32, u32>,
    /// Tokens of the prompt, ascending; filled only where a repetition penalty needs it.
    pub prompt_tokens: Vec<u32>,
}

/// Changes logits by the request's penalties.
pub fn apply_penalties(logits: &mut [f32], params: &SamplingParams, history: &History) {
    if params.repetition_penalty != 1.0 {
        let penalty = params.repetition_penalty as f32;
        let of_prompt = history.prompt_tokens.iter().filter(|&id| !history.output_counts.contains_key(id));
        for &id in of_prompt.chain(history.output_counts.keys()) {
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
    if params.frequency_penalty != 0.0 || params.presence_penalty != 0.0 {
        for (&id, &count) in &history.output_counts {
            let penalty = params.frequency_penalty * f64::from(count) + params.presence_penalty;
            logits[id as usize] -= penalty as f32;
        }
    }
}

/// Makes tokens impossible.
pub fn forbid(logits: &mut [f32], ids: impl Iterator<Item = u32>) {
    for id in ids {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// The softmax of a row of logits at a temperature.
#[derive(Debug)]
pub struct Distribution<'a> {
    logits: &'a [f32],
    inverse_temperature: f32,
    most_likely: u32,
    max: f32,
    log_sum: f32,
}

impl<'a> Distribution<'a> {
    /// `None` when the row holds no finite maximum: the network has produced nonsense.
    #[must_use]
    pub fn new(logits: &'a [f32], temperature: f64) -> Option<Self> {
        let temperature = if temperature < GREEDY_BELOW_TEMPERATURE { 1.0 } else { temperature };
        let inverse_temperature = (1.0 / temperature) as f32;
        let mut most_likely = 0;
        let mut best = f32::NEG_INFINITY;
        let mut has_nan = false;
        for (id, &logit) in logits.iter().enumerate() {
            has_nan |= logit.is_nan();
            if logit > best {
                best = logit;
                most_likely = id;
            }
        }
        if has_nan || !best.is_finite() {
            return None;
        }
        let max = best * inverse_temperature;
        let mut sum = 0.0_f64;
        for &logit in logits {
            sum += f64::from((logit * inverse_temperature - max).exp());
        }
        Some(Self { logits, inverse_temperature, most_likely: most_likely as u32, max, log_sum: sum.ln() as f32 })
    }

    /// The token of the highest logit; of equals the lowest id.
    #[must_use]
    pub fn most_likely(&self) -> u32 {
        self.most_likely
    }

    /// Natural logarithm of a token's probability; minus infinity for an id outside the vocabulary.
    #[must_use]
    pub fn logprob(&self, id: u32) -> f32 {
        let logit = self.logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        logit * self.inverse_temperature - self.max - self.log_sum
    }

    /// Logprobs of given tokens, in their order.
    #[must_use]
    pub fn requested(&self, ids: &[u32]) -> Vec<TokenLogprob> {
        ids.iter().map(|&id| TokenLogprob { id, logprob: self.logprob(id) }).collect()
    }

    /// The `count` most likely tokens, most likely first, of equals the lowest id first.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<TokenLogprob> {
        if count == 0 {
            return Vec::new();
        }
        let mut ids = self.ranked(count);
        ids.truncate(count);
        ids.into_iter().map(|id| TokenLogprob { id, logprob: self.logprob(id) }).collect()
    }

    /// Ids, of which at least the first `count` are sorted by falling probability.
    fn ranked(&self, count: usize) -> Vec<u32> {
        let order = |left: &u32, right: &u32| {
            let (left_logit, right_logit) = (self.logits[*left as usize], self.logits[*right as usize]);
            right_logit.total_cmp(&left_logit).then(left.cmp(right))
        };
        let mut ids: Vec<u32> = (0..self.logits.len() as u32).collect();
        if count < ids.len() {
            ids.select_nth_unstable_by(count, order);
            ids.truncate(count);
        }
        ids.sort_unstable_by(order);
        ids
    }

    /// Draws a token; takes one random number unless the request is greedy.
    pub fn draw(&self, params: &SamplingParams, random: &mut Random) -> u32 {
        if params.is_greedy() {
            return self.most_likely;
        }
        let uniform = random.random::<f64>();
        let top_k = params.top_k.map_or(self.logits.len(), |k| (k as usize).min(self.logits.len()));
        if params.top_p >= 1.0 && params.min_p <= 0.0 && top_k == self.logits.len() {
            return self.draw_from(0..self.logits.len() as u32, uniform);
        }
        self.draw_from(self.nucleus(params, top_k).into_iter(), uniform)
    }

    /// Tokens that top-k, top-p and min-p leave, most likely first; never empty.
    fn nucleus(&self, params: &SamplingParams, top_k: usize) -> Vec<u32> {
        let mut ids = self.ranked(top_k);
        ids.truncate(top_k);
        let mut before = 0.0_f64;
        let mut kept = 0;
        let least = f64::from(self.logprob(self.most_likely)).exp() * params.min_p;
        for &id in &ids {
            let probability = f64::from(self.logprob(id)).exp();
            if kept > 0 && (before > params.top_p || probability < least) {
                break;
            }
            before += probability;
            kept += 1;
        }
        ids.truncate(kept);
        ids
    }

    /// Walks the cumulated weights of some tokens up to `uniform` of their sum.
    fn draw_from(&self, ids: impl Iterator<Item = u32> + Clone, uniform: f64) -> u32 {
        let weight = |id: u32| f64::from((self.logits[id as usize] * self.inverse_temperature - self.max).exp());
        let total: f64 = ids.clone().map(weight).sum();
        let mut left = uniform * total;
        let mut last_possible = self.most_likely;
        for id in ids {
            let of_this = weight(id);
            if of_this > 0.0 {
                last_possible = id;
                if left < of_this {
                    return id;
                }
            }
            left -= of_this;
        }
        // Rounding has eaten the end of the sum.
        last_possible
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::Seed;

    use super::*;

    const LOGITS: [f32; 5] = [0.5, 2.0, -1.0, 2.0, 1.0];

    fn frequencies(params: &SamplingParams) -> Vec<f64> {
        let distribution = Distribution::new(&LOGITS, params.temperature).unwrap();
        let mut random = Seed::new(3).random();
        let mut counts = vec![0.0; LOGITS.len()];
        for _ in 0..20_000 {
            counts[distribution.draw(params, &mut random) as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    fn softmax(temperature: f64) -> Vec<f64> {
        let weights: Vec<f64> = LOGITS.iter().map(|&logit| (f64::from(logit) / temperature).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    #[test]
    fn tokens_are_drawn_as_often_as_their_logprob_says() {
        for temperature in [0.5, 1.0, 2.0] {
            let params = SamplingParams { temperature, ..SamplingParams::default() };
            let distribution = Distribution::new(&LOGITS, temperature).unwrap();
            for ((id, drawn), expected) in frequencies(&params).iter().enumerate().zip(softmax(temperature)) {
                assert!((drawn - expected).abs() < 0.015, "{temperature}: {id} drawn {drawn}, expected {expected}");
                assert!((f64::from(distribution.logprob(id as u32)) - expected.ln()).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn narrowing_leaves_the_tokens_it_should() {
        let base = SamplingParams::default();
        let probabilities = softmax(1.0);
        let cases: [(&str, SamplingParams, &[usize]); 6] = [
            ("top_k 1", SamplingParams { top_k: Some(1), ..base.clone() }, &[1]),
            ("top_k 3", SamplingParams { top_k: Some(3), ..base.clone() }, &[1, 3, 4]),
            ("top_k over", SamplingParams { top_k: Some(99), ..base.clone() }, &[0, 1, 2, 3, 4]),
            ("top_p small", SamplingParams { top_p: 0.01, ..base.clone() }, &[1]),
            ("top_p", SamplingParams { top_p: probabilities[1] + 0.01, ..base.clone() }, &[1, 3]),
            ("min_p", SamplingParams { min_p: 0.3, ..base.clone() }, &[1, 3, 4]),
        ];
        for (name, params, expected) in cases {
            let drawn: Vec<usize> =
                frequencies(&params).iter().enumerate().filter(|(_, share)| **share > 0.0).map(|(id, _)| id).collect();
            assert_eq!(drawn, expected, "{name}");
        }
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_reports_unscaled_logprobs() {
        let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let distribution = Distribution::new(&LOGITS, 0.0).unwrap();
        assert_eq!(distribution.draw(&params, &mut Seed::new(1).random()), 1);
        assert!((f64::from(distribution.logprob(1)) - softmax(1.0)[1].ln()).abs() < 1e-6);
    }

    #[test]
    fn top_lists_are_sorted_and_cut() {
        let distribution = Distribution::new(&LOGITS, 1.0).unwrap();
        let ids = |count| distribution.top(count).iter().map(|token| token.id).collect::<Vec<_>>();
        assert_eq!(ids(3), [1, 3, 4]);
        assert_eq!(ids(9), [1, 3, 4, 0, 2]);
        assert!(ids(0).is_empty());
    }

    #[test]
    fn penalties_change_what_was_seen_and_nothing_else() {
        let history = History { output_counts: [(1, 2)].into(), prompt_tokens: vec![2] };
        let check = |params: SamplingParams, expected: [f32; 5]| {
            let mut logits = LOGITS;
            apply_penalties(&mut logits, &params, &history);
            assert_eq!(logits, expected);
        };
        let base = SamplingParams::default();
        check(base.clone(), LOGITS);
        check(SamplingParams { frequency_penalty: 0.5, ..base.clone() }, [0.5, 1.0, -1.0, 2.0, 1.0]);
        check(SamplingParams { presence_penalty: 0.5, ..base.clone() }, [0.5, 1.5, -1.0, 2.0, 1.0]);
        check(SamplingParams { repetition_penalty: 2.0, ..base }, [0.5, 1.0, -2.0, 2.0, 1.0]);
    }

    #[test]
    fn nonsense_is_noticed() {
        assert!(Distribution::new(&[0.0, f32::NAN], 1.0).is_none());
        assert!(Distribution::new(&[f32::NEG_INFINITY; 2], 1.0).is_none());
        assert!(Distribution::new(&[f32::INFINITY, 0.0], 1.0).is_none());
    }
}
