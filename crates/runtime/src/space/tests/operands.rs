//! Tests that a section gives the same answers regardless of whether its operands hold blocks or
//! answer at once, and that each input block leaves the section exactly once, regardless of how the
//! operands process their copies.

use super::*;
use crate::space::operands::{OperandExpr, OperandSection};
use testkit::Random;

type ReferenceEvaluation = Box<dyn Fn(u32, &mut u32) -> bool>;
/// Numbers of blocks, each with the class of its block.
type NumberedClasses = Vec<(u32, u32)>;

/// A random expression in two forms, `light` for a [`Section`] and `heavy` for an
/// [`OperandSection`], with a reference evaluation.
struct ExpressionPair {
    light: Section,
    heavy: OperandExpr,
    /// Reference evaluation of the expression. Returns true if the section must answer the number,
    /// and sets the class to the result of the last operand that answered.
    answers: ReferenceEvaluation,
}

/// A classifier for a number `n` that gives class `n` to multiples of `n`.
struct DivisorClassifier(u32);

impl Classify for DivisorClassifier {
    fn classify(&mut self, block: &mut Block<'_>, _: &mut ClassifyContext<'_>) -> Class {
        Class(if block_number(block).is_multiple_of(self.0) { self.0 } else { 0 })
    }
}

/// [`DivisorClassifier`] as a stream filter that holds each block until three more have arrived,
/// and creates additional blocks.
struct HoldingDivisorClassifier {
    held: HeldList,
    of: u32,
}

impl Stream for HoldingDivisorClassifier {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        let class = Class(if block_number(&block).is_multiple_of(self.of) { self.of } else { 0 });
        cx.hold(&mut self.held, &block.with_class(class), block_number(&block));
        cx.append(4, Class::YES, BlockMetadata::default(), |room| room.len());
        if self.held.len() > 3 {
            cx.release_front_block(&mut self.held, |block| block);
        }
    }

    fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        while !self.held.is_empty() {
            cx.release_front_block(&mut self.held, |block| block);
        }
    }
}

fn random_expr(random: &mut Random, depth: u32, a: &mut Assembly, slow: bool) -> ExpressionPair {
    let kind = if depth == 0 { 0 } else { random.below(5) };
    let mut two = |random: &mut Random, depth| {
        let one = random_expr(random, depth, a, slow);
        (one, random_expr(random, depth, a, slow))
    };
    let pair =
        |wanted: SelectedClasses, one, other| vec![(SelectedClasses::All, one), (wanted, other)];
    match kind {
        1 => {
            let (one, other) = two(random, depth - 1);
            ExpressionPair {
                light: Section::Any(two_operands(SelectedClasses::All, one.light, other.light)),
                heavy: OperandExpr::Any(pair(SelectedClasses::All, one.heavy, other.heavy)),
                answers: Box::new(move |n, result| {
                    (one.answers)(n, result) || (other.answers)(n, result)
                }),
            }
        }
        2 => {
            let (one, other) = two(random, depth - 1);
            ExpressionPair {
                light: Section::All(two_operands(SelectedClasses::All, one.light, other.light)),
                heavy: OperandExpr::All(pair(SelectedClasses::All, one.heavy, other.heavy)),
                answers: Box::new(move |n, result| {
                    (one.answers)(n, result) && (other.answers)(n, result)
                }),
            }
        }
        3 => {
            let one = random_expr(random, depth - 1, a, slow);
            ExpressionPair {
                light: Section::Not(Box::new(one.light)),
                heavy: OperandExpr::Not(Box::new(one.heavy)),
                answers: Box::new(move |n, _| !(one.answers)(n, &mut 0)),
            }
        }
        4 => {
            let (one, other) = two(random, 0);
            ExpressionPair {
                light: Section::Chain(two_operands(
                    SelectedClasses::Answered,
                    one.light,
                    other.light,
                )),
                heavy: OperandExpr::Chain(pair(SelectedClasses::Answered, one.heavy, other.heavy)),
                answers: Box::new(move |n, result| {
                    (one.answers)(n, &mut 0) && (other.answers)(n, result)
                }),
            }
        }
        _ => {
            let of = *random.pick(&[2, 3, 5]);
            let part = match random.below(2) == 0 && slow {
                true => Filter::stream(HoldingDivisorClassifier { held: HeldList::default(), of }),
                false => Filter::classify(DivisorClassifier(of)),
            };
            let at = a.add_operand(create_node("operand", Operator::Filter(part)));
            ExpressionPair {
                light: Section::Filter(at),
                heavy: OperandExpr::Filter((at, at)),
                answers: Box::new(move |n, result| {
                    let yes = n.is_multiple_of(of);
                    *result = if yes { of } else { *result };
                    yes
                }),
            }
        }
    }
}

fn two_operands(
    wanted: SelectedClasses,
    one: Section,
    other: Section,
) -> Vec<(SelectedClasses, Section)> {
    vec![(SelectedClasses::All, one), (wanted, other)]
}

/// Runs 300 blocks through a section with a random expression. If `slow` is true, the section's
/// operands hold blocks. If `heavy` is true, the section is an [`OperandSection`], otherwise a
/// [`Section`]. Returns all blocks that leave the section, each with its class, and the expected
/// result.
fn run_section(seed: u64, slow: bool, heavy: bool) -> (NumberedClasses, NumberedClasses) {
    const BLOCK_COUNT: u32 = 300;
    let mut wanted = Vec::new();
    let (mut kept, results) = run_graph(BLOCK_COUNT, 32, |a, from, to| {
        let both = random_expr(&mut Random::new(seed), 3, a, slow);
        let class = |n: u32| {
            let mut result = 1;
            if (both.answers)(n, &mut result) { result } else { 0 }
        };
        wanted = (0..BLOCK_COUNT).map(|n| (n, class(n))).collect();
        let part = match heavy {
            true => Operator::OperandSection(Box::new(OperandSection::new(&both.heavy))),
            false => Operator::Section(Arc::new(both.light)),
        };
        let section = a.add_node(create_node("section", part));
        a.add_arc(from, section, SelectedClasses::Answered, false, 0);
        a.add_arc(section, to, SelectedClasses::All, false, 1);
    });
    let ledger = assert_balanced(&[results]);
    assert!(ledger.filters.iter().all(|node| node.held.blocks == 0), "seed {seed}");
    kept.sort_unstable();
    (kept, wanted)
}

#[test]
fn a12_random_section_answers_as_its_reference_evaluation() {
    let mut random = Random::with_replayable_seed();
    for _ in 0..150 {
        let seed = random.next_u64();
        for (slow, heavy) in [(false, false), (false, true), (true, true)] {
            let (kept, wanted) = run_section(seed, slow, heavy);
            assert_eq!(kept, wanted, "seed {seed}, slow {slow}, heavy {heavy}");
        }
    }
}
