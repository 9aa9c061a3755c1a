//! The policy network on libtorch and the embedded engine that speaks SGLang's protocol
