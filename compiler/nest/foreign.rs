//! External functions that generated code calls. Only models whose operators require one have the undefined
//! symbol. Crate `onnxc-runtime` provides the image decoder; users provide custom operators.

use super::{Buf, Module, Place, Stmt};
use crate::diag::Origin;
use onnxc_runtime::image::PixelFormat;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// A call of an external function. Its buffers are complete, in row-major order, and of the types of the
/// interface: no pass changes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The function.
    pub function: Function,
    /// The buffers that it reads.
    pub from: Vec<Buf>,
    /// The buffers that it writes.
    pub to: Vec<Buf>,
}

/// A node of an operator that the user provides (`--custom`).
#[derive(Clone, Debug, PartialEq)]
pub struct Custom {
    /// The function.
    pub symbol: String,
    /// The node.
    pub origin: Origin,
    /// Which inputs are given; those of the call in order.
    pub inputs: Vec<bool>,
    /// Which outputs are wanted.
    pub outputs: Vec<bool>,
    /// Its attributes.
    pub attributes: Vec<(String, Attribute)>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Attribute {
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Strings(Vec<Vec<u8>>),
    Float(f32),
    Int(i64),
    String(Vec<u8>),
}

/// Interns the name of an external function for the lifetime of the process. Their number is bounded by the
/// names that users give.
pub fn symbol(name: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(|e| e.into_inner());
    match known.get(name) {
        Some(s) => s,
        None => {
            let new: &'static str = Box::leak(name.to_owned().into_boxed_str());
            known.insert(new);
            new
        }
    }
}

impl Attribute {
    /// `AttributeProto.AttributeType`.
    pub fn kind(&self) -> u32 {
        match self {
            Attribute::Float(_) => 1,
            Attribute::Int(_) => 2,
            Attribute::String(_) => 3,
            Attribute::Floats(_) => 6,
            Attribute::Ints(_) => 7,
            Attribute::Strings(_) => 8,
        }
    }
    /// Each kind as a list of numbers: floats as their bits, strings as their bytes.
    fn json(&self) -> Value {
        let list = match self {
            Attribute::Float(v) => json!([v.to_bits()]),
            Attribute::Int(v) => json!([v]),
            Attribute::String(v) => json!([v]),
            Attribute::Floats(v) => v.iter().map(|v| v.to_bits()).collect(),
            Attribute::Ints(v) => json!(v),
            Attribute::Strings(v) => json!(v),
        };
        json!([self.kind(), list])
    }
    fn read(v: &Value) -> Option<Attribute> {
        let list = v[1].as_array()?;
        let float = |v: &Value| Some(f32::from_bits(u32::try_from(v.as_u64()?).ok()?));
        let string = |v: &Value| -> Option<Vec<u8>> {
            v.as_array()?.iter().map(|b| u8::try_from(b.as_u64()?).ok()).collect()
        };
        Some(match v[0].as_u64()? {
            1 => Attribute::Float(float(list.first()?)?),
            2 => Attribute::Int(list.first()?.as_i64()?),
            3 => Attribute::String(string(list.first()?)?),
            6 => Attribute::Floats(list.iter().map(float).collect::<Option<_>>()?),
            7 => Attribute::Ints(list.iter().map(Value::as_i64).collect::<Option<_>>()?),
            8 => Attribute::Strings(list.iter().map(string).collect::<Option<_>>()?),
            _ => return None,
        })
    }
}

impl Custom {
    /// The text of it in the nest IR, without a quotation mark of that text.
    pub fn text(&self) -> String {
        let o = &self.origin;
        let attributes: Vec<Value> = self.attributes.iter().map(|(n, a)| json!([n, a.json()])).collect();
        json!([self.symbol, [o.op, o.name, o.output], self.inputs, self.outputs, attributes])
            .to_string()
            .replace('\'', "\\u0027")
    }
    /// From its text.
    pub fn read(text: &str) -> Option<Custom> {
        let v: Value = serde_json::from_str(text).ok()?;
        let word = |v: &Value| v.as_str().map(str::to_owned);
        let mask = |v: &Value| -> Option<Vec<bool>> { v.as_array()?.iter().map(Value::as_bool).collect() };
        let attribute = |v: &Value| Some((word(&v[0])?, Attribute::read(&v[1])?));
        Some(Custom {
            symbol: word(&v[0])?,
            origin: Origin {
                op: word(&v[1][0])?,
                name: word(&v[1][1])?,
                output: word(&v[1][2])?,
                ..Origin::default()
            },
            inputs: mask(&v[2])?,
            outputs: mask(&v[3])?,
            attributes: v[4].as_array()?.iter().map(attribute).collect::<Option<_>>()?,
        })
    }
}

impl Module {
    /// Adds a call to the driver. No pass changes its buffers.
    pub fn call_foreign(&mut self, function: Function, from: Vec<Buf>, to: Vec<Buf>) {
        for b in from.iter().chain(&to) {
            let b = self.storage(*b);
            if matches!(self.bufs[b].place, Place::Temp) {
                self.bufs[b].place = Place::Foreign;
            }
        }
        self.driver.push(Stmt::Foreign(Foreign { function, from, to }));
    }
}

/// The functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Bytes of an encoded image -> height, width and channels (i64); height and width are 0 if it cannot be
    /// decoded.
    ImageShape(PixelFormat),
    /// The same -> its pixels, as many as the buffer has dimensions for.
    ImagePixels(PixelFormat),
    /// A custom operator, by its number in [`Module::customs`]; the buffers are those that its masks name.
    Custom(u32),
}

/// What [`Function::ImageShape`] and [`Function::ImagePixels`] call:
/// `int32_t onnxc_decode_image(const uint8_t *encoded, int64_t size, int32_t pixel_format, int64_t shape[3],
/// uint8_t *pixels)`.
pub const DECODE_IMAGE: &str = "onnxc_decode_image";

impl Function {
    const ALL: [Function; 6] = [
        Function::ImageShape(PixelFormat::Rgb),
        Function::ImageShape(PixelFormat::Bgr),
        Function::ImageShape(PixelFormat::Grayscale),
        Function::ImagePixels(PixelFormat::Rgb),
        Function::ImagePixels(PixelFormat::Bgr),
        Function::ImagePixels(PixelFormat::Grayscale),
    ];
    /// Name in the nest IR.
    pub fn name(self) -> &'static str {
        match self {
            Function::ImageShape(PixelFormat::Rgb) => "image_shape_rgb",
            Function::ImageShape(PixelFormat::Bgr) => "image_shape_bgr",
            Function::ImageShape(PixelFormat::Grayscale) => "image_shape_grayscale",
            Function::ImagePixels(PixelFormat::Rgb) => "image_pixels_rgb",
            Function::ImagePixels(PixelFormat::Bgr) => "image_pixels_bgr",
            Function::ImagePixels(PixelFormat::Grayscale) => "image_pixels_grayscale",
            Function::Custom(_) => "custom",
        }
    }
    /// From the name.
    pub fn from_name(name: &str) -> Option<Self> {
        Function::ALL.into_iter().find(|f| f.name() == name)
    }
    /// The function, for the interpreter: the result for `from` in a buffer of these dimensions.
    pub fn run(self, from: &[u8], dims: &[i64]) -> Option<Vec<u8>> {
        match self {
            Function::ImageShape(f) => {
                let (h, w, _) = decode(from, f)?;
                Some(
                    [i64::from(h), i64::from(w), f.channels() as i64]
                        .iter()
                        .flat_map(|n| n.to_le_bytes())
                        .collect(),
                )
            }
            Function::ImagePixels(f) => {
                let (h, w, pixels) = decode(from, f)?;
                (dims == [i64::from(h), i64::from(w), f.channels() as i64]).then_some(pixels)
            }
            Function::Custom(_) => None,
        }
    }
}

/// Data that is not an image has no pixels.
#[cfg(feature = "image")]
fn decode(from: &[u8], f: PixelFormat) -> Option<(u32, u32, Vec<u8>)> {
    Some(onnxc_runtime::image::decode(from, f).unwrap_or_default())
}

/// Without decoders there is no result.
#[cfg(not(feature = "image"))]
fn decode(_: &[u8], _: PixelFormat) -> Option<(u32, u32, Vec<u8>)> {
    None
}
