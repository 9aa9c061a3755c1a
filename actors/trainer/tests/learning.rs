//! What a learner promises: it learns, repeats exactly, resumes exactly, and never applies what is broken.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking, its helpers too

mod support;

use std::path::Path;

use greenroom_core::Seed;
use greenroom_messages::rollout::Sample;
use greenroom_messages::trainer::{ExportWeights, SaveCheckpoint, TrainBatch, TrainGroup, TrainRollout, WarmStart};
use greenroom_messages::{RunId, Step, WeightVersion};
use greenroom_policy::Parameters;
use greenroom_trainer::config::{DtypeChoice, ScheduleConfig, ScheduleShape};
use greenroom_trainer::model::PolicyModel;
use greenroom_trainer::{Learner, Progress, TrainerConfig};
use rand::Rng;
use support::{VOCABULARY, decoder, made_up_batch, rollout_id, small_model};
use tch::{Device, Kind, Tensor};

fn config() -> TrainerConfig {
    let mut config = TrainerConfig { device: "cpu".to_owned(), tokens_per_micro_batch: 16, ..TrainerConfig::default() };
    config.optimizer.learning_rate = 1e-2;
    config
}

/// A config in which everything that a checkpoint must keep matters.
fn elaborate_config() -> TrainerConfig {
    let mut config = config();
    config.loss.kl_coefficient = 0.1;
    config.loss.entropy_coefficient = 0.01;
    config.optimizer_steps_per_batch = 2;
    config.schedule =
        ScheduleConfig { shape: ScheduleShape::Cosine, warmup_steps: 3, decay_steps: 8, min_learning_rate: 1e-4 };
    config
}

fn learner(config: TrainerConfig) -> (Learner, Parameters) {
    learner_from(5, config)
}

fn learner_from(seed: u64, config: TrainerConfig) -> (Learner, Parameters) {
    let (model_config, parameters) = small_model(seed);
    let model = Box::new(decoder(&model_config, &parameters));
    let learner = Learner::with_model(config, model, Kind::Float, Progress::default()).unwrap();
    (learner, parameters)
}

fn bits(learner: &Learner) -> Vec<u32> {
    let values = |tensor: &Tensor| Vec::<f32>::try_from(tensor.detach().flatten(0, -1)).unwrap();
    learner.masters().flat_map(|(_, master)| values(master)).map(f32::to_bits).collect()
}

fn save(learner: &mut Learner, dir: &Path) {
    let request = SaveCheckpoint { step: learner.step(), dir: dir.to_str().unwrap().to_owned() };
    learner.save(&request).unwrap();
}

/// One token after a prompt; the nearer to the right one, the more reward (so that each batch has a signal and success does
/// not hang on a lucky find). On-policy batches of two prompts.
struct Bandit {
    random: greenroom_core::Random,
    step: u64,
}

const PROMPTS: [([i64; 2], i64); 2] = [([1, 2], 7), ([3, 1], 11)];
const ROLLOUTS_PER_GROUP: u32 = 16;

impl Bandit {
    fn logprobs(model: &dyn PolicyModel, prompt: &[i64]) -> Vec<f32> {
        let _no_grad = tch::no_grad_guard();
        let hidden = model.hidden(prompt, &[prompt.len()]).unwrap();
        let logits = hidden.matmul(&model.head().unwrap().tr()).get(prompt.len() as i64 - 1);
        Vec::try_from(logits.log_softmax(-1, Kind::Float)).unwrap()
    }

    fn batch(&mut self, model: &dyn PolicyModel) -> TrainBatch {
        self.step += 1;
        let mut groups = Vec::new();
        for (index, (prompt, right)) in PROMPTS.iter().enumerate() {
            let logprobs = Self::logprobs(model, prompt);
            let rollouts = (0..ROLLOUTS_PER_GROUP).map(|member| {
                let mut left = self.random.random::<f32>();
                let below = |logprob: &f32| {
                    left -= logprob.exp();
                    left < 0.0
                };
                let token = logprobs.iter().position(below).unwrap_or(VOCABULARY - 1);
                let sample = Sample {
                    tokens: vec![prompt[0] as u32, prompt[1] as u32, token as u32],
                    loss_mask: vec![0, 0, 1],
                    logprobs: vec![0.0, 0.0, logprobs[token]],
                    versions: Vec::new(),
                };
                let reward = 1.0 - (token as i64 - right).abs() as f32 / VOCABULARY as f32;
                TrainRollout { rollout: rollout_id(index as u32, member), reward, samples: vec![sample] }
            });
            groups.push(TrainGroup { group: rollout_id(index as u32, 0).group, rollouts: rollouts.collect() });
        }
        TrainBatch { step: Step(self.step), groups, temperature: 1.0 }
    }
}

#[test]
fn a_bandit_is_learnt_within_eighty_steps() {
    for seed in [1, 2, 3] {
        let (model_config, parameters) = small_model(seed);
        let policy = decoder(&model_config, &parameters);
        let model = Box::new(decoder(&model_config, &parameters));
        let mut config = config();
        config.optimizer.learning_rate = 5e-3; // learns for each of 16 seeds tried
        let mut learner = Learner::with_model(config, model, Kind::Float, Progress::default()).unwrap();
        let mut bandit = Bandit { random: Seed::new(seed).child("bandit").random(), step: 0 };
        let chance = |policy: &dyn PolicyModel| {
            PROMPTS.map(|(prompt, right)| Bandit::logprobs(policy, &prompt)[right as usize].exp())
        };
        let before = chance(&policy);
        for _ in 0..80 {
            let metrics = learner.train(&bandit.batch(&policy)).unwrap();
            assert_eq!(metrics.skipped_steps, 0);
            assert!(metrics.logprob_mismatch < 1e-4, "what was sampled is what is trained: {metrics:?}");
        }
        let after = chance(&policy);
        println!("seed {seed}: probability of the right token {before:?} -> {after:?}");
        assert!(before.iter().all(|chance| *chance < 0.2) && after.iter().all(|chance| *chance > 0.9), "seed {seed}");
    }
}

#[test]
fn the_same_batches_give_the_same_bits() {
    let run = || {
        let (mut learner, _) = learner(elaborate_config());
        let metrics: Vec<_> = (1..=3).map(|step| learner.train(&made_up_batch(step)).unwrap()).collect();
        (bits(&learner), metrics)
    };
    assert_eq!(run(), run());
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one_bit_for_bit() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("step-3");
    let (mut straight, _) = learner(elaborate_config());
    for step in 1..=3 {
        straight.train(&made_up_batch(step)).unwrap();
    }
    save(&mut straight, &dir);
    let straight: Vec<_> =
        (4..=6).map(|step| (straight.train(&made_up_batch(step)).unwrap(), bits(&straight))).collect();

    // Another start, another reference policy, other moments: all of it is replaced.
    let (mut resumed, _) = learner_from(6, elaborate_config());
    resumed.train(&made_up_batch(1)).unwrap();
    assert_eq!(resumed.load(&dir).unwrap(), Step(3));
    let resumed: Vec<_> = (4..=6).map(|step| (resumed.train(&made_up_batch(step)).unwrap(), bits(&resumed))).collect();
    assert_eq!(straight, resumed);
    assert!(straight[0].0.kl > 0.0, "the reference policy was part of the checkpoint");
    assert_eq!(straight[0].0.optimizer_steps, 2);
}

#[test]
fn a_damaged_or_foreign_checkpoint_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (dir, moments) = (root.path().join("step-1"), root.path().join("step-1/moments.safetensors"));
    let (mut learner, _) = learner(config());
    learner.train(&made_up_batch(1)).unwrap();
    save(&mut learner, &dir);
    learner.train(&made_up_batch(2)).unwrap();
    let before = bits(&learner);

    let mut bytes = std::fs::read(&moments).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&moments, &bytes).unwrap();
    assert_eq!(learner.load(&dir).unwrap_err().code(), "GR0707");
    bytes.pop();
    std::fs::write(&moments, &bytes).unwrap();
    assert_eq!(learner.load(&dir).unwrap_err().code(), "GR0707");
    assert_eq!(learner.load(&root.path().join("nothing")).unwrap_err().code(), "GR0707");

    let (model_config, parameters) = small_model(5);
    let mut sizes = model_config.json.clone();
    sizes.insert("intermediate_size".to_owned(), 48.into());
    let other = greenroom_policy::ModelConfig::from_json(&sizes.into(), Path::new("<memory>")).unwrap();
    drop(parameters);
    let model = Box::new(decoder(&other, &Parameters::init(&other, 1).unwrap()));
    let mut other = Learner::with_model(config(), model, Kind::Float, Progress::default()).unwrap();
    let foreign = root.path().join("foreign");
    save(&mut other, &foreign);
    assert_eq!(learner.load(&foreign).unwrap_err().code(), "GR0708");

    assert_eq!((learner.step(), bits(&learner)), (Step(2), before));
    learner.train(&made_up_batch(3)).unwrap();
}

#[test]
fn a_gradient_that_is_not_finite_is_reported_and_never_applied() {
    let (mut learner, parameters) = learner(config());
    learner.train(&made_up_batch(1)).unwrap();
    let weight = parameters.get("model.norm.weight").unwrap();
    let healthy = weight.detach().copy();
    drop(tch::no_grad(|| weight.detach().fill_(f64::INFINITY)));
    let before = bits(&learner);
    let metrics = learner.train(&made_up_batch(2)).unwrap();
    assert_eq!((metrics.skipped_steps, metrics.optimizer_steps), (1, 0));
    let report = metrics.report(0);
    assert!(report.skipped && report.loss.is_finite() && report.grad_norm.is_finite(), "{report:?}");
    assert_eq!(bits(&learner), before);
    // The moments are untouched too: with the weight mended, training goes on.
    tch::no_grad(|| weight.detach().copy_(&healthy));
    let metrics = learner.train(&made_up_batch(3)).unwrap();
    assert_eq!((metrics.skipped_steps, learner.step()), (0, Step(3)));
    assert!(bits(&learner).iter().all(|bits| f32::from_bits(*bits).is_finite()));
}

#[test]
fn a_batch_without_signal_moves_nothing() {
    let (mut learner, _) = learner(config());
    learner.train(&made_up_batch(1)).unwrap();
    let before = bits(&learner);
    let mut batch = made_up_batch(2);
    for rollout in batch.groups.iter_mut().flat_map(|group| &mut group.rollouts) {
        rollout.reward = 1.0;
    }
    let metrics = learner.train(&batch).unwrap();
    assert_eq!((metrics.groups_without_signal, metrics.optimizer_steps, metrics.skipped_steps), (2, 0, 0));
    assert_eq!((bits(&learner), learner.step()), (before, Step(2)));
}

#[test]
fn leaving_out_samples_without_advantage_changes_no_weight() {
    let batch = || {
        let mut batch = made_up_batch(1);
        batch.groups[0].rollouts.iter_mut().for_each(|rollout| rollout.reward = 0.5);
        batch
    };
    let run = |skip: bool| {
        let mut config = config();
        (config.loss.skip_zero_advantage, config.tokens_per_micro_batch) = (skip, 10);
        let (mut learner, _) = learner(config);
        let metrics = learner.train(&batch()).unwrap();
        (bits(&learner), metrics.tokens_trained)
    };
    let (with, without) = (run(false), run(true));
    assert!(with.1 > without.1, "something was left out");
    let distance = |(left, right): (&u32, &u32)| (f32::from_bits(*left) - f32::from_bits(*right)).abs();
    let largest = with.0.iter().zip(&without.0).map(distance).fold(0.0, f32::max);
    assert!(largest < 1e-6, "largest difference of a weight {largest}");
}

#[test]
fn bad_batches_are_refused_before_anything_changes() {
    let (mut learner, _) = learner(config());
    let before = bits(&learner);
    let mut twice = made_up_batch(1);
    twice.groups[1].rollouts[0].rollout = twice.groups[0].rollouts[0].rollout;
    let mut reward = made_up_batch(1);
    reward.groups[0].rollouts[0].reward = f32::NAN;
    let mut temperature = made_up_batch(1);
    temperature.temperature = 0.0;
    let mut token = made_up_batch(1);
    token.groups[0].rollouts[0].samples[0].tokens[1] = 99;
    let mut long = made_up_batch(1);
    long.groups[0].rollouts[0].samples[0] = Sample {
        tokens: vec![1; 20],
        loss_mask: [vec![0; 19], vec![1]].concat(),
        logprobs: vec![0.0; 20],
        versions: Vec::new(),
    };
    let cases = [
        (made_up_batch(2), "GR0702", "step-0"),
        (twice, "GR0702", "twice"),
        (reward, "GR0702", "t00001-g000-s00-a00: its reward is NaN"),
        (temperature, "GR0702", "temperature 0"),
        (token, "GR0702", "token 99 at position 1"),
        (long, "GR0703", "t00001-g000-s00-a00 sample 0 has 19 tokens"),
    ];
    for (batch, code, part) in cases {
        let error = learner.train(&batch).unwrap_err();
        assert!(error.code() == code && error.to_string().contains(part), "{code} {part}: {error}");
    }
    assert_eq!((bits(&learner), learner.step()), (before, Step(0)));
}

#[test]
fn a_warm_start_learns_demonstrations_and_repeats_exactly() {
    let demonstration = |start: u32| Sample {
        tokens: (0..10).map(|index| (start + index * 3) % VOCABULARY as u32).collect(),
        loss_mask: (0..10).map(|index| u8::from(index > 1)).collect(),
        ..Sample::default()
    };
    let request = WarmStart {
        samples: (0..12).map(demonstration).collect(),
        epochs: 20,
        tokens_per_step: 40,
        learning_rate: 1e-2,
        seed: 9,
    };
    let run = || {
        let (mut learner, _) = learner(config());
        let report = learner.warm_start(&request).unwrap();
        (report, bits(&learner))
    };
    let (report, weights) = run();
    assert_eq!((report.steps, report.tokens), (60, 20 * 12 * 8));
    assert!(report.first_loss > 1.5 && report.last_loss < 0.2, "{report:?}");
    assert_eq!((report, weights), run());
}

#[test]
fn exports_are_the_masters_and_can_be_opened() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("v1");
    let request = ExportWeights {
        version: WeightVersion { run: RunId::new("test"), number: 1 },
        dir: dir.to_str().unwrap().to_owned(),
    };
    let (mut trained, _) = learner(config());
    trained.train(&made_up_batch(1)).unwrap();
    trained.export(&request).unwrap();
    trained.export(&request).unwrap();
    let opened = Learner::open(config(), &dir, Progress::default()).unwrap();
    assert_eq!(bits(&opened), bits(&trained));

    std::fs::write(root.path().join("letter"), "dear").unwrap();
    let foreign = ExportWeights { dir: root.path().to_str().unwrap().to_owned(), ..request };
    assert_eq!(trained.export(&foreign).unwrap_err().code(), "GR0706");
    assert!(root.path().join("letter").is_file());
}

#[test]
fn a_warm_start_that_broke_off_begins_anew_at_the_weights_it_began_with() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("v0");
    let version = WeightVersion { run: RunId::new("test"), number: 0 };
    let request = ExportWeights { version, dir: dir.to_str().unwrap().to_owned() };
    learner(config()).0.export(&request).unwrap();
    let sample = made_up_batch(1).groups[0].rollouts[0].samples[0].clone();
    let samples = vec![sample; 8];
    let demonstrations = WarmStart { samples, epochs: 1, tokens_per_step: 16, learning_rate: 1e-3, seed: 1 };
    let open = || Learner::open(config(), &dir, Progress::default()).unwrap();
    let mut whole = open();
    let report = whole.warm_start(&demonstrations).unwrap();

    let (mut broken, looks) = (open(), std::cell::Cell::new(0));
    let until_the_third_look = || looks.replace(looks.get() + 1) < 2;
    broken.warm_start_while(&demonstrations, &until_the_third_look).unwrap_err();
    assert_eq!(broken.save(&SaveCheckpoint { step: Step(0), dir: String::new() }).unwrap_err().code(), "GR0710");
    assert_eq!(broken.warm_start(&demonstrations).unwrap(), report);
    assert_eq!(bits(&broken), bits(&whole));
}

#[test]
fn bf16_weights_follow_f32_masters_that_keep_small_updates() {
    let (model_config, parameters) = small_model(5);
    let parameters = parameters.copy_to(Kind::BFloat16, Device::Cpu).unwrap();
    let model = Box::new(decoder(&model_config, &parameters));
    let mut config = TrainerConfig { compute_dtype: DtypeChoice::Bf16, ..config() };
    config.optimizer.learning_rate = 1e-6; // far below bf16's resolution
    let mut learner = Learner::with_model(config, model, Kind::BFloat16, Progress::default()).unwrap();
    let before = bits(&learner);
    for step in 1..=3 {
        let metrics = learner.train(&made_up_batch(step)).unwrap();
        assert!(metrics.optimizer_steps == 1 && metrics.gradient_norm > 0.0, "{metrics:?}");
    }
    let after = bits(&learner);
    assert!(before.iter().zip(&after).filter(|(before, after)| before != after).count() > after.len() / 2);
    for (name, master) in learner.masters() {
        let rounded = master.to_kind(Kind::BFloat16);
        assert!(rounded.equal(&parameters.get(name).unwrap().detach()), "{name} is its master, rounded");
    }
}
