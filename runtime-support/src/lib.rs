//! Optional helpers around code that onnxc generates. Generated objects need nothing of this: it is for
//! programs that want a ready-made thread pool, a mapped weights file, or to drive a model through its
//! metadata without knowing it at compile time (tests, tools, other languages).
//!
//! * [`abi`]: the C ABI of generated code, mirrored.
//! * [`pool`]: a thread pool that serves as `parallel_for`; from C as well (`include/onnxc_runtime.h`; build
//!   the library with `cargo rustc -p onnxc-runtime --release --crate-type staticlib`).
//! * [`weights`]: maps `<m>.weights`.
//! * [`model`]: calls any model through its `<m>_model`; [`value`]: what it takes and gives.
//! * [`probe`]: peak and bandwidth of this machine, measured.
//! * [`texts`]: strings as bytes.
//! * [`image`]: with the feature `image`, decodes the images of models with ImageDecoder, whose objects call
//!   it; `--features image` builds it into the library.
//! * [`fault`]: why a call failed.
//! * [`buffer`]: aligned memory for workspaces and outputs.

pub mod abi;
pub mod buffer;
pub mod fault;
pub mod image;
pub mod model;
pub mod pool;
pub mod probe;
pub mod texts;
pub mod value;
pub mod weights;

pub use abi::Status;
pub use buffer::{Buffer, Workspace};
pub use fault::Error;
pub use model::{Dim, Kind, Model, ValueInfo};
pub use pool::{Exec, Pool};
pub use value::{Element, Map, Tensor, Value};
pub use weights::{Weights, WeightsError};
