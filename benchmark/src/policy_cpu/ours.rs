//! Our side: the Learner that trains runs, and the generator of the embedded engine.

use std::path::Path;

use anyhow::{Context, ensure};
use greenroom_messages::rollout::Sample;
use greenroom_messages::trainer::{TrainBatch, TrainGroup, TrainRollout};
use greenroom_messages::{BatchId, GroupId, Purpose, RolloutId, Step};
use greenroom_policy::generation::{GenerationEvent, GenerationRequest, GeneratorHandle, GeneratorOptions, start};
use greenroom_policy::{ModelConfig, Network, Parameters};
use greenroom_trainer::{Learner, Progress, TrainerConfig};
use tch::{Kind, Tensor};

use super::sizes::Size;

/// A learner on the model in this directory, with the settings of a run, on one thread.
pub fn learner(model: &Path) -> anyhow::Result<Learner> {
    let config = TrainerConfig { device: "cpu".to_owned(), cpu_threads: 1, ..TrainerConfig::default() };
    Ok(Learner::open(config, model, Progress::default())?)
}

/// One GRPO step on a batch of equal sequences with every token trained: the same work as the peer's. Both rewards occur, so
/// that no sample is left out.
pub fn train(learner: &mut Learner, size: &Size) -> anyhow::Result<()> {
    let (sequences, length) = size.training;
    let batch = BatchId { purpose: Purpose::Train, number: learner.step().next().0 };
    let group = GroupId { batch, index: 0 };
    let rollout = |number: usize| TrainRollout {
        rollout: RolloutId { group, sample: number as u32, attempt: 0 },
        reward: (number % 2) as f32,
        samples: vec![Sample {
            // one token more than the peer's: the last one is only predicted
            tokens: token_ids(length + 1, number, size.model.vocab_size),
            loss_mask: (0..=length).map(|place| u8::from(place > 0)).collect(),
            logprobs: vec![-(size.model.vocab_size as f32).ln(); length + 1],
            versions: Vec::new(),
        }],
    };
    let groups = vec![TrainGroup { group, rollouts: (0..sequences).map(rollout).collect() }];
    let batch = TrainBatch { step: Step(batch.number), groups, temperature: 1.0 };
    let metrics = learner.train(&batch)?;
    ensure!(metrics.optimizer_steps == 1, "the optimizer made {} steps", metrics.optimizer_steps);
    let expected = (sequences * length) as u64;
    ensure!(metrics.tokens_total == expected, "{} tokens of {expected} were read", metrics.tokens_total);
    Ok(())
}

/// Token ids that no other number shares a prefix with.
pub fn token_ids(length: usize, number: usize, vocabulary: usize) -> Vec<u32> {
    let id =
        |place: usize| (place * 7919 + (number + 1) * 104_729 + place * place * (number + 3)) % (vocabulary - 3) + 3;
    (0..length).map(|place| id(place) as u32).collect()
}

/// A generator of the embedded engine on one thread.
pub fn generator(
    config: &ModelConfig,
    parameters: &Parameters,
    batch_invariant: bool,
) -> anyhow::Result<GeneratorHandle> {
    let options = GeneratorOptions { batch_invariant, threads: 1, ..GeneratorOptions::default() };
    Ok(start(config, parameters, Path::new("bench"), options)?)
}

/// Generates for so many requests at once; prompts are new in each round, because the peer has no prefix cache.
pub async fn generate(handle: &GeneratorHandle, size: &Size, requests: usize, round: usize) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    for number in 0..requests {
        let ids = token_ids(size.prompt, round * 1000 + number, size.model.vocab_size);
        let mut request = GenerationRequest::new(format!("{round:03}-{number:03}"), ids);
        request.params.max_new_tokens = size.new_tokens as u32;
        request.params.ignore_eos = true;
        streams.push(handle.submit(request).await?);
    }
    let mut tokens = 0;
    for mut stream in streams {
        while let Some(event) = stream.recv().await {
            if let GenerationEvent::Tokens(more) = event {
                tokens += more.len();
            }
        }
    }
    ensure!(tokens == requests * size.new_tokens, "{tokens} tokens were generated");
    handle.flush_cache().await?;
    Ok(())
}

/// Logits of one sequence, row by row.
pub fn logits(config: &ModelConfig, parameters: &Parameters, ids: &[u32]) -> anyhow::Result<Vec<f32>> {
    let _guard = tch::no_grad_guard();
    let network = Network::new(config, parameters)?;
    let ids: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
    let bounds = [0, ids.len() as i64];
    let positions = network.packed_positions(&bounds)?;
    let hidden = network.forward_packed(&Tensor::f_from_slice(&ids)?, &positions, &bounds)?;
    let logits = network.logits(&hidden)?.f_to_kind(Kind::Float)?.f_flatten(0, 1)?;
    Vec::<f32>::try_from(&logits).context("logits")
}
