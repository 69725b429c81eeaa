//! The cheapest assignment: the Hungarian method on small matrices.
#![forbid(unsafe_code)]

/// Cost of a row that stays alone: above any sum of real costs, so that most rows are paired first.
const ALONE: f64 = 1e9;

/// Pairs of row and column, at most one per row and column: as many as can be, then as cheap as can be. `None` in the
/// matrix forbids a pair. Takes rows² × (rows + columns) steps.
pub(super) fn cheapest(costs: &[Vec<Option<f64>>]) -> Vec<(usize, usize)> {
    let rows = costs.len();
    let real = costs.first().map_or(0, Vec::len);
    // One more column per row is the choice to stay alone.
    let columns = real + rows;
    let cost = |row: usize, column: usize| match column < real {
        true => costs[row][column].map_or(ALONE * 2.0, |cost| cost.min(ALONE / 1e3)),
        false => ALONE,
    };
    // Potentials of rows and columns, and which row holds a column; index 0 stands for nothing.
    let (mut of_row, mut of_column) = (vec![0.0; rows + 1], vec![0.0; columns + 1]);
    let mut holder = vec![0usize; columns + 1];
    for row in 1..=rows {
        let mut way = vec![0usize; columns + 1];
        let mut slack = vec![f64::INFINITY; columns + 1];
        let mut done = vec![false; columns + 1];
        let mut column = 0;
        holder[0] = row;
        while holder[column] != 0 {
            done[column] = true;
            let from = holder[column];
            let (mut step, mut next) = (f64::INFINITY, 0);
            for to in 1..=columns {
                if done[to] {
                    continue;
                }
                let reduced = cost(from - 1, to - 1) - of_row[from] - of_column[to];
                if reduced < slack[to] {
                    (slack[to], way[to]) = (reduced, column);
                }
                if slack[to] < step {
                    (step, next) = (slack[to], to);
                }
            }
            for to in 0..=columns {
                if done[to] {
                    of_row[holder[to]] += step;
                    of_column[to] -= step;
                } else {
                    slack[to] -= step;
                }
            }
            column = next;
        }
        while column != 0 {
            holder[column] = holder[way[column]];
            column = way[column];
        }
    }
    let held = (1..=real).filter(|column| holder[*column] != 0).map(|column| (holder[column] - 1, column - 1));
    let mut pairs: Vec<(usize, usize)> = held.filter(|(row, column)| costs[*row][*column].is_some()).collect();
    pairs.sort_unstable();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every assignment, one after the other.
    fn by_trying(costs: &[Vec<Option<f64>>], row: usize, taken: &mut Vec<usize>) -> (usize, f64) {
        if row == costs.len() {
            return (0, 0.0);
        }
        let mut best = by_trying(costs, row + 1, taken);
        best.0 += 1;
        for column in 0..costs[row].len() {
            if let Some(cost) = costs[row][column].filter(|_| !taken.contains(&column)) {
                taken.push(column);
                let (alone, rest) = by_trying(costs, row + 1, taken);
                taken.pop();
                if (alone, rest + cost) < best {
                    best = (alone, rest + cost);
                }
            }
        }
        best
    }

    proptest::proptest! {
        #[test]
        fn no_other_assignment_is_better(
            costs in (0usize..6).prop_flat_map(|columns| proptest::collection::vec(
                proptest::collection::vec(proptest::option::weighted(0.7, 0.0f64..100.0), columns), 0..6))
        ) {
            let pairs = cheapest(&costs);
            let columns: std::collections::HashSet<usize> = pairs.iter().map(|(_, column)| *column).collect();
            proptest::prop_assert_eq!(columns.len(), pairs.len());
            let total: f64 = pairs.iter().map(|(row, column)| costs[*row][*column].unwrap()).sum();
            let (alone, best) = by_trying(&costs, 0, &mut Vec::new());
            proptest::prop_assert_eq!(pairs.len(), costs.len() - alone);
            // A billion is the largest number that takes part: what is left of it are some ten thousandths.
            proptest::prop_assert!((total - best).abs() < 1e-3, "{} instead of {}", total, best);
        }
    }

    use proptest::strategy::Strategy as _;
}
