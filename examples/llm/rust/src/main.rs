//! Continues a text with a compiled language model, byte by byte: what `main.c` does.
//!
//!     talk [PROMPT [BYTES [TEMPERATURE [SEED]]]]
//!
//! The caches of the model lie in `state` and stay there: a call stores what its bytes add, behind the `past`
//! positions that are in use. When they are full, they are filled anew with the last half of the text.

use std::io::Write;

mod llm {
    include!(concat!(env!("OUT_DIR"), "/llm.rs"));
}

const CAPACITY: usize = llm::PAST_MAX;

fn random_number(seed: &mut u64) -> f64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed >> 11) as f64 / 9007199254740992.0
}

/// A byte by its probability; the likeliest one at temperature 0.
fn choose(logits: &[f32], temperature: f64, seed: &mut u64) -> u8 {
    let best = (1..logits.len()).fold(0, |b, i| if logits[i] > logits[b] { i } else { b });
    if temperature <= 0.0 {
        return best as u8;
    }
    let p: Vec<f64> = logits.iter().map(|x| (f64::from(x - logits[best]) / temperature).exp()).collect();
    let mut left = p.iter().sum::<f64>() * random_number(seed);
    for (i, x) in p.iter().enumerate() {
        left -= x;
        if left < 0.0 {
            return i as u8;
        }
    }
    best as u8
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let prompt = args.next().unwrap_or("The compiler ".into());
    let bytes: usize = args.next().map_or(Ok(400), |a| a.parse())?;
    let temperature: f64 = args.next().map_or(Ok(0.5), |a| a.parse())?;
    let mut seed = args.next().map_or(Ok(1), |a| a.parse::<u64>())?.wrapping_mul(2654435769).wrapping_add(1);
    if !(1..CAPACITY).contains(&prompt.len()) {
        return Err(format!("a prompt has from 1 to {} bytes", CAPACITY - 1).into());
    }

    let mut state = [[0.0; llm::PRESENT_0_KEY_LEN]; 6];
    let mut logits = [0.0; llm::LOGITS_LEN];
    // One size that is enough for a prompt and for single bytes.
    let mut blocks = vec![llm::Block::new(); llm::Block::count(llm::WORKSPACE_MAX_SIZE)];
    let mut step = |past: usize, text: &[u8], logits: &mut [f32; llm::LOGITS_LEN]| {
        let [k0, v0, k1, v1, k2, v2] = &mut state;
        let dims = llm::Dims { tokens: text.len(), past };
        llm::infer(&dims, text, logits, k0, v0, k1, v1, k2, v2, &mut llm::Workspace::new(&mut blocks)).map_err(|e| e.to_string())
    };
    let mut out = std::io::stdout().lock();
    write!(out, "{prompt}")?;
    let mut text = prompt.into_bytes();
    step(0, &text, &mut logits)?;
    for _ in 0..bytes {
        let next = choose(&logits, temperature, &mut seed);
        out.write_all(&[next])?;
        out.flush()?;
        step(text.len(), &[next], &mut logits)?;
        text.push(next);
        if text.len() == CAPACITY {
            text.drain(..CAPACITY / 2);
            step(0, &text, &mut logits)?;
        }
    }
    writeln!(out)?;
    Ok(())
}
