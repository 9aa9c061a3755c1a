//! One decoder layer: norm, projections, heads, rotation; then output projection and gated MLP, each added to the stream.

use tch::{Kind, Tensor};

use super::rope::Rotation;
use crate::error::PolicyError;
use crate::model::{ModelConfig, Parameters};

/// What attention works on: `query [T, heads, head_dim]`, `key` and `value [T, key_value_heads, head_dim]`; query and key
/// are rotated to their positions.
#[derive(Debug)]
pub(crate) struct AttentionInput {
    pub query: Tensor,
    pub key: Tensor,
    pub value: Tensor,
}

/// `x * weight^T + bias`.
#[derive(Debug)]
struct Projection {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Projection {
    fn new(parameters: &Parameters, name: &str) -> Result<Self, PolicyError> {
        let weight = parameters.require(&format!("{name}.weight"))?.shallow_clone();
        Ok(Self { weight, bias: parameters.get(&format!("{name}.bias")).map(Tensor::shallow_clone) })
    }

    fn apply(&self, input: &Tensor) -> Result<Tensor, PolicyError> {
        Ok(input.f_linear(&self.weight, self.bias.as_ref())?)
    }
}

/// Several projections of the same input: apart (training), or as one product (generation).
#[derive(Debug)]
enum Stack {
    Apart(Vec<Projection>),
    Fused { whole: Projection, widths: Vec<i64> },
}

impl Stack {
    fn apart(parameters: &Parameters, names: &[String]) -> Result<Self, PolicyError> {
        let projections = names.iter().map(|name| Projection::new(parameters, name)).collect::<Result<_, _>>()?;
        Ok(Self::Apart(projections))
    }

    /// Lays the weights into one tensor and replaces the parameters by views of it.
    fn fused(parameters: &mut Parameters, names: &[String]) -> Result<Self, PolicyError> {
        let mut widths = Vec::new();
        for name in names {
            widths.push(parameters.require(&format!("{name}.weight"))?.size()[0]);
        }
        let weight = fuse(parameters, names, "weight", &widths)?;
        let has_bias = parameters.get(&format!("{}.bias", names[0])).is_some();
        let bias = if has_bias { Some(fuse(parameters, names, "bias", &widths)?) } else { None };
        Ok(Self::Fused { whole: Projection { weight, bias }, widths })
    }

    fn apply(&self, input: &Tensor) -> Result<Vec<Tensor>, PolicyError> {
        match self {
            Self::Apart(projections) => projections.iter().map(|projection| projection.apply(input)).collect(),
            Self::Fused { whole, widths } => Ok(whole.apply(input)?.f_split_with_sizes(widths.as_slice(), -1)?),
        }
    }
}

fn fuse(parameters: &mut Parameters, names: &[String], part: &str, widths: &[i64]) -> Result<Tensor, PolicyError> {
    let full_names: Vec<String> = names.iter().map(|name| format!("{name}.{part}")).collect();
    let parts: Vec<&Tensor> = full_names.iter().map(|name| parameters.require(name)).collect::<Result<_, _>>()?;
    let whole = Tensor::f_cat(&parts, 0)?;
    let views = whole.f_split_with_sizes(widths, 0)?;
    for (name, view) in full_names.iter().zip(views) {
        parameters.replace(name, view);
    }
    Ok(whole)
}

/// Weights and sizes of one layer.
#[derive(Debug)]
pub(crate) struct Layer {
    input_norm: Tensor,
    query_key_value: Stack,
    head_norms: Option<(Tensor, Tensor)>,
    output: Projection,
    mlp_norm: Tensor,
    gate_up: Stack,
    down: Projection,
    epsilon: f64,
    head_dim: i64,
}

impl Layer {
    pub(crate) fn new(config: &ModelConfig, parameters: &Parameters, number: usize) -> Result<Self, PolicyError> {
        let query_key_value =
            Stack::apart(parameters, &stack_names(number, "self_attn", &["q_proj", "k_proj", "v_proj"]))?;
        let gate_up = Stack::apart(parameters, &stack_names(number, "mlp", &["gate_proj", "up_proj"]))?;
        Self::assemble(config, parameters, number, query_key_value, gate_up)
    }

    pub(crate) fn fused(config: &ModelConfig, parameters: &mut Parameters, number: usize) -> Result<Self, PolicyError> {
        let query_key_value =
            Stack::fused(parameters, &stack_names(number, "self_attn", &["q_proj", "k_proj", "v_proj"]))?;
        let gate_up = Stack::fused(parameters, &stack_names(number, "mlp", &["gate_proj", "up_proj"]))?;
        Self::assemble(config, parameters, number, query_key_value, gate_up)
    }

    fn assemble(
        config: &ModelConfig,
        parameters: &Parameters,
        number: usize,
        query_key_value: Stack,
        gate_up: Stack,
    ) -> Result<Self, PolicyError> {
        let prefix = format!("model.layers.{number}");
        let norm = |part: &str| -> Result<Tensor, PolicyError> {
            Ok(parameters.require(&format!("{prefix}.{part}.weight"))?.shallow_clone())
        };
        let head_norms =
            if config.qk_norm { Some((norm("self_attn.q_norm")?, norm("self_attn.k_norm")?)) } else { None };
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            query_key_value,
            head_norms,
            output: Projection::new(parameters, &format!("{prefix}.self_attn.o_proj"))?,
            mlp_norm: norm("post_attention_layernorm")?,
            gate_up,
            down: Projection::new(parameters, &format!("{prefix}.mlp.down_proj"))?,
            epsilon: config.rms_norm_eps,
            head_dim: config.head_dim as i64,
        })
    }

    /// `[T, hidden]` to rotated heads.
    pub(crate) fn attention_input(&self, stream: &Tensor, rotation: &Rotation) -> Result<AttentionInput, PolicyError> {
        let normed = rms_norm(stream, &self.input_norm, self.epsilon)?;
        let mut heads = Vec::with_capacity(3);
        for projected in self.query_key_value.apply(&normed)? {
            heads.push(projected.f_unflatten(-1, [-1, self.head_dim])?);
        }
        let [mut query, mut key, value] = <[Tensor; 3]>::try_from(heads)
            .map_err(|heads| PolicyError::Input(format!("{} projections instead of 3", heads.len())))?;
        if let Some((query_norm, key_norm)) = &self.head_norms {
            query = rms_norm(&query, query_norm, self.epsilon)?;
            key = rms_norm(&key, key_norm, self.epsilon)?;
        }
        Ok(AttentionInput { query: rotation.apply(&query)?, key: rotation.apply(&key)?, value })
    }

    /// Adds what attention found (`[T, heads * head_dim]`) and the MLP to the stream.
    pub(crate) fn finish(&self, stream: &Tensor, attended: &Tensor) -> Result<Tensor, PolicyError> {
        let stream = stream.f_add(&self.output.apply(attended)?)?;
        let normed = rms_norm(&stream, &self.mlp_norm, self.epsilon)?;
        let gate_up = self.gate_up.apply(&normed)?;
        let gated = gate_up[0].f_silu()?.f_mul(&gate_up[1])?;
        Ok(stream.f_add(&self.down.apply(&gated)?)?)
    }
}

fn stack_names(number: usize, block: &str, parts: &[&str]) -> Vec<String> {
    parts.iter().map(|part| format!("model.layers.{number}.{block}.{part}")).collect()
}

/// `x / sqrt(mean(x^2) + epsilon) * weight` over the last dimension; the mean is taken in f32, as `transformers` does.
pub(crate) fn rms_norm(input: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor, PolicyError> {
    let width = weight.size();
    if input.kind() == Kind::Float {
        return Ok(input.f_rms_norm(width, Some(weight), epsilon)?);
    }
    // In half precision `transformers` rounds before it multiplies by the weight.
    let normed = input.f_to_kind(Kind::Float)?.f_rms_norm(width, None::<&Tensor>, epsilon)?;
    Ok(normed.f_to_kind(input.kind())?.f_mul(weight)?)
}
