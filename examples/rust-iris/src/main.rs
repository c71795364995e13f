//! Tells the species of irises with a compiled network, and compares with what they are.

use std::process::ExitCode;

mod iris {
    include!(concat!(env!("OUT_DIR"), "/iris.rs"));
}
mod samples;

const SPECIES: [&str; iris::SPECIES_LEN] = ["setosa", "versicolor", "virginica"];

/// The most likely species and its probability. The workspace is all that a call writes besides its output:
/// one per thread that runs the model.
fn classify(flower: &[f32; iris::MEASURES_LEN], workspace: &mut iris::Workspace) -> Result<(usize, f32), iris::Error> {
    let mut probabilities = [0.0; iris::SPECIES_LEN];
    iris::infer(flower, &mut probabilities, workspace)?;
    let mut best = 0;
    for (k, p) in probabilities.iter().enumerate() {
        if *p > probabilities[best] {
            best = k;
        }
    }
    Ok((best, probabilities[best]))
}

fn main() -> ExitCode {
    let mut workspace = iris::Workspace::new();
    let mut wrong = 0;
    for (flower, species) in &samples::SAMPLES {
        match classify(flower, &mut workspace) {
            Ok((best, p)) => {
                let mark = if best == *species { "" } else { "  WRONG" };
                println!("{flower:?}: {} ({:.1} %){mark}", SPECIES[best], 100.0 * p);
                wrong += usize::from(best != *species);
            }
            Err(e) => {
                eprintln!("iris::infer: {e}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{} of {} right", samples::SAMPLES.len() - wrong, samples::SAMPLES.len());
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
