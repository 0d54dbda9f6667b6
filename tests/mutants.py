"""Plants one fault after another in a copy of the project and checks that a test catches each.

    python -m tests.mutants            all of them
    python -m tests.mutants NAME ...   some

A fault that no test catches ends it with status 1. So does a fault whose place is not found in the
code: after a change of the code, point it there again.
"""

from __future__ import annotations

import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

ROUND = "pause_jax/run/rounds/round.py"
RECORDER = "pause_jax/run/record/recorder.py"
QUANTITIES = "pause_jax/run/record/quantities.py"
HORIZON = "pause_jax/run/horizon.py"
EVALUATIONS = "pause_jax/run/record/evaluations.py"
BRANCH = "pause_jax/run/branch.py"
SCORE = "pause_jax/run/score.py"
STATE = "pause_jax/run/rounds/state.py"
SETUP = "pause_jax/run/setup.py"
WORLD = "pause_jax/run/rounds/world.py"
CLIENT = "pause_jax/learning/client.py"
FEDAVG = "pause_jax/learning/fedavg.py"
ASYNCHRONOUS = "pause_jax/run/events/server_step.py"
EVENTS = "pause_jax/run/events/queue.py"
FLIGHT = "pause_jax/run/events/flight.py"
CLOCK = "pause_jax/config/clock.py"
PISCES = "pause_jax/policies/pisces.py"
PISCES_TEST = "tests/policies/test_pisces.py"
INDEX_RULES = "pause_jax/policies/index_rules.py"
INDEX_TEST = "tests/policies/test_index.py::"
ASYNCHRONOUS_SELECTOR = "pause_jax/deploy/selector/asynchronous.py"
ASYNCHRONOUS_SELECTOR_TEST = "tests/deploy/test_asynchronous_selector.py::"
CONFIG_SUMMARY = "pause_jax/sweeps/config_summary.py"
STEPS_TEST = "tests/run/test_server_steps.py::"
BY_HAND = f"{STEPS_TEST}test_the_ten_answers_of_the_guide"
QUEUE = "tests/run/test_event_clock.py::test_a_run_is_what_the_event_queue_says[{}]"
EVALUATION = "pause_jax/learning/evaluation.py"
COHORT = "pause_jax/learning/cohort.py"
LEARNING = "pause_jax/learning/config.py"
LOCAL_SGD = "pause_jax/learning/local_sgd.py"
LEARNER = "pause_jax/learning/learner.py"
CONVOLUTION = "pause_jax/learning/convolution.py"
RESNET = "pause_jax/learning/resnet.py"
SCHEDULE = "pause_jax/learning/schedule.py"
PARTITION = "pause_jax/learning/partition.py"
BANDIT = "pause_jax/bandit/stats.py"
LANDSCAPE = "pause_jax/bandit/search/landscape.py"
REWARD = "pause_jax/bandit/reward.py"
CHOOSE = "pause_jax/policies/choose.py"
KEYS = "pause_jax/rng/keys.py"
DRAWS = "pause_jax/rng/draws.py"
SIMULATE = "pause_jax/run/simulate.py"
SIZES = "pause_jax/run/sizes.py"
SPEED = "pause_jax/world/latency/speed.py"
TAILS = "pause_jax/world/latency/tails.py"
TRACES = "pause_jax/world/latency/traces.py"
ARRIVAL = "pause_jax/run/rounds/arrival.py"
CONFIG = "pause_jax/config/sim_config.py"
NETWORK = "pause_jax/world/latency/network.py"
PRESENCE = "pause_jax/world/availability/base.py"
INTERVALS = "pause_jax/world/availability/intervals.py"
SELECTOR = "pause_jax/deploy/selector/selector.py"
PAIRED = "pause_jax/analysis/paired.py"
COMPARISON = "pause_jax/analysis/comparison.py"
PAGE = "pause_jax/analysis/report/page.py"
COMPILATION = "pause_jax/base/compilation.py"
COMPILATION_TEST = "tests/run/test_compilation.py"
KEYS_TEST = "tests/rng/test_keys.py"
DRAWS_TEST = "tests/rng/test_draws.py"
HORIZON_TEST = "tests/run/test_horizon.py"
COMPILER_TEST = "tests/test_compiler.py::test_the_compiler_is_right_as_users_compile"
LATENCY_TEST = "tests/world/test_latency.py::test_moments_match_quadrature"
TRACES_TEST = "tests/world/test_traces.py"
ARRIVAL_TEST = "tests/run/test_arrival.py"
PRESENCE_TEST = "tests/world/test_availability.py"
NETWORK_TEST = "tests/world/test_network_latency.py"
SELECTOR_TEST = "tests/deploy/test_selector.py"
RESULT_FOLDER = "pause_jax/cli/result_folder.py"
HOSTILE_TEST = "tests/config/test_hostile.py"
TUNING = "pause_jax/tuning.py"
POLICY = "pause_jax/policies/base.py"
INSPECTION = "pause_jax/policies/inspection.py"
LAWS = "pause_jax/analysis/laws.py"
FLEET = "pause_jax/analysis/fleet.py"
SPEEDS = "pause_jax/run/speeds.py"
FLEET_TEST = "tests/analysis/test_fleet.py"
LOG_TEST = f"{FLEET_TEST}::test_rounds_of_a_log_stay_aligned_and_an_empty_cell_is_a_drop_out"
DENSITY_TEST = f"{FLEET_TEST}::test_a_laws_density_is_an_integral_over_each_clients_scale"
HONEST_TEST = f"{FLEET_TEST}::test_an_honest_fleet_is_suspected_as_often_as_said"
KINK_TEST = (
    f"{NETWORK_TEST}::test_expectations_are_those_of_a_quadrature_split_at_the_least_latency"
)
CONTEXT_TEST = f"{SELECTOR_TEST}::test_its_policy_is_built_from_what_that_of_a_simulation_is"
BUDGET = "pause_jax/privacy/budget.py"
SPHERE = "pause_jax/privacy/sphere.py"
PROJECTION = "pause_jax/privacy/projection.py"
LEDGER = "pause_jax/analysis/ledger.py"
LEDGER_TABLE = "pause_jax/analysis/ledger_table.py"
AUDIT = "pause_jax/privacy/audit.py"
CLOCK_TEST = "tests/run/test_clock.py"
PRIVACY_TEST = "tests/privacy/test_privacy.py"
MECHANISMS_TEST = "tests/privacy/test_mechanisms.py"
ACCOUNTING_TEST = "tests/analysis/test_accounting.py"
CLIENT_IDS = "pause_jax/base/client_ids.py"
MATCHING = "pause_jax/run/matching.py"
TASK = "pause_jax/learning/task.py"
PROVENANCE = "pause_jax/sweeps/provenance.py"
JOBS = "pause_jax/sweeps/prepare.py"
CHECKPOINT = "pause_jax/sweeps/checkpoint.py"
STORE_TEST = "tests/sweeps/test_store.py"
CRASHES_TEST = (
    "tests/sweeps/test_crashes.py::test_a_death_before_any_change_of_the_folder_loses_nothing"
)
WORKERS_TEST = "tests/sweeps/test_workers.py"
CONSTANT = f"{STORE_TEST}::test_a_constant_of_custom_code_counts_wherever_it_comes_from[{{}}]"
MIDDLE = "tests/sweeps/test_store.py::test_a_run_goes_on_in_the_middle[learned]"
CURVES = "pause_jax/analysis/curves.py"
METRICS = "pause_jax/analysis/metrics.py"
REGRET = "pause_jax/analysis/regret.py"
SUMMARY = "pause_jax/analysis/summary.py"
NORMS = "pause_jax/learning/normalisation.py"
NORMS_TEST = "tests/learning/test_normalisation.py::"
LAYERS_TEST = "tests/learning/test_layers.py::"
DEP_ROUND_TEST = "tests/policies/test_dep_round.py"
PRIVACY_AWARE = "pause_jax/policies/privacy_aware.py"
PRIVACY_AWARE_TEST = "tests/policies/test_privacy_aware.py"
PAUSE = "pause_jax/policies/pause.py"
LEFT_OF_TEST = (
    f"{PRIVACY_AWARE_TEST}::test_pause_weighs_what_is_left_of_the_own_or_of_the_largest_budget"
)
MECHANISM = "pause_jax/privacy/mechanisms.py"
NOISE_TEST = "tests/privacy/test_noise_power.py"
NEXT_RELEASE_TEST = (
    f"{NOISE_TEST}::test_a_policy_knows_each_clients_budget_and_the_noise_of_its_next_release"
)
BUDGET_LAW_TEST = "tests/privacy/test_budget_law.py"
OWN_BUDGET_TEST = f"{BUDGET_LAW_TEST}::test_a_client_reads_its_own_budget_where_no_draw_decides"
E3CS = "pause_jax/policies/e3cs.py"
E3CS_TEST = "tests/policies/test_e3cs.py"
F3AST = "pause_jax/policies/f3ast.py"
F3AST_TEST = "tests/policies/test_f3ast.py"
POLARIS = "pause_jax/policies/polaris.py"
POLARIS_TEST = "tests/policies/test_polaris.py"
REFL = "pause_jax/policies/refl.py"
REFL_TEST = "tests/policies/test_refl.py"
STALENESS = "pause_jax/learning/staleness.py"
STALENESS_TEST = "tests/learning/test_staleness.py"
OBSERVED_TEST = f"{ARRIVAL_TEST}::test_a_policy_observes_who_was_there_who_is_late_and_the_time"
FORECAST_TEST = f"{PRESENCE_TEST}::test_a_forecast_is_how_often_one_that_is_there_is_so_later"
DIVFL = "pause_jax/policies/divfl.py"
HOST = "pause_jax/policies/host.py"
BASELINES = "pause_jax/policies/baselines.py"
HICS_FL = "pause_jax/policies/hics_fl.py"
FEDCOR = "pause_jax/policies/fedcor.py"
GREEDYFED = "pause_jax/policies/greedyfed.py"
DIVFL_TEST = "tests/policies/test_divfl.py"
HICS_TEST = "tests/policies/test_hics_fl.py"
FEDCOR_TEST = "tests/policies/test_fedcor.py"
GREEDY_TEST = "tests/policies/test_greedyfed.py"
OUTPUT_TEST = "tests/learning/test_output_layer.py"
CURVES_TEST = "tests/analysis/test_mean_curves.py::"
SUMMARY_TEST = "tests/analysis/test_summary.py::test_a_row_has_the_figures_of_merit_of_its_config"


class Mutant(NamedTuple):
    """A fault.

    Attributes:
      name: what is wrong.
      file: where.
      old: the right text, which occurs once in the file.
      new: the wrong text.
      test: a config of tests/run/test_whole_round.py that shows it, or the path of another test.
    """

    name: str
    file: str
    old: str
    new: str
    test: str = "pause"


MUTANTS = [
    # --- cohorts of given probabilities
    Mutant(
        "pause_weighs_the_own_budget_whatever_it_is_told",
        PAUSE,
        'if self.left_of == "own" else of_the_largest',
        "if self.left_of else of_the_largest",
        LEFT_OF_TEST,
    ),
    Mutant(
        "the_largest_budget_is_taken_for_the_mean",
        PAUSE,
        "total / jnp.max(total), 1.0)",
        "total / jnp.mean(total), 1.0)",
        LEFT_OF_TEST,
    ),
    Mutant(
        "budgets_without_a_limit_are_divided",
        PAUSE,
        "jnp.where(jnp.isfinite(total), total / jnp.max(total), 1.0)",
        "total / jnp.max(total)",
        f"{PRIVACY_AWARE_TEST}::test_of_equal_or_no_budgets_both_are_the_same",
    ),
    Mutant(
        "a pair over one is settled by the wrong client's room",
        CHOOSE,
        "* (2 - both) < 1 - left",
        "* (2 - both) < 1 - right",
        DEP_ROUND_TEST,
    ),
    Mutant(
        "the same clients trade in every draw: no random order",
        CHOOSE,
        "jnp.argsort(jax.random.bits(order_key, (num_clients,)))",
        "jnp.arange(num_clients)",
        DEP_ROUND_TEST,
    ),
    Mutant(
        "a client over one is cut, and the others do not share the rest",
        CHOOSE,
        "chosen = factor[jnp.argmax(fits)]",
        "chosen = factor[0]",
        DEP_ROUND_TEST,
    ),
    Mutant(
        "rounding_says_which_of_two_clients_is_drawn",
        CHOOSE,
        "(1 - chance[:half]) * (2 - both) < 1 - left",
        "chance[:half] * (2 - both) < 1 - left",
        f"{DEP_ROUND_TEST}::test_rounding_of_a_probability_does_not_change_who_is_drawn",
    ),
    # --- budgets that differ
    Mutant(
        "the_noise_of_the_release_before",
        POLICY,
        "self.privacy.budget.epsilon(participations + 1)",
        "self.privacy.budget.epsilon(participations)",
        NEXT_RELEASE_TEST,
    ),
    Mutant(
        "a_client_without_budget_is_not_noisy",
        POLICY,
        "return jnp.where(left, jnp.minimum(power, MOST_NOISE), jnp.inf)",
        "return power",
        NEXT_RELEASE_TEST,
    ),
    Mutant(
        "laplace_noise_of_half_its_variance",
        MECHANISM,
        "return 2 * dimension * (self.sensitivity / epsilon) ** 2",
        "return dimension * (self.sensitivity / epsilon) ** 2",
        f"{NOISE_TEST}::test_the_closed_form_is_the_mean_of_many_releases[per_coordinate-0-0.7]",
    ),
    Mutant(
        "noise_of_a_release_whose_length_is_public",
        SPHERE,
        "(second * power - 2 * first + 1)",
        "(power - 1)",
        f"{NOISE_TEST}::test_the_closed_form_is_the_mean_of_many_releases[priv_unit_g-5-0.7]",
    ),
    Mutant(
        "noise_that_stays_in_the_projection",
        PROJECTION,
        "return dimension / kept * self.inner",
        "return self.inner",
        f"{NOISE_TEST}::test_the_closed_form_is_the_mean_of_many_releases[projected-7-0.7]",
    ),
    Mutant(
        "a_probability_above_one",
        PRIVACY_AWARE,
        "0.0, 1 / count)",
        "0.0, 1.0)",
        f"{PRIVACY_AWARE_TEST}::test_the_closed_form_is_the_solvers",
    ),
    Mutant(
        "the_bias_weighs_half",
        PRIVACY_AWARE,
        "share * (1 - (cost - tau) / (2 * bias_weight))",
        "share * (1 - (cost - tau) / bias_weight)",
        f"{PRIVACY_AWARE_TEST}::test_the_closed_form_is_the_solvers",
    ),
    Mutant(
        "draws_in_proportion_to_the_error_not_to_its_root",
        PRIVACY_AWARE,
        "weight = share * jnp.sqrt(cost)",
        "weight = share * cost",
        f"{PRIVACY_AWARE_TEST}::test_clients_are_drawn_with_the_solvers_probabilities",
    ),
    Mutant(
        "a_client_that_is_drawn_often_weighs_as_much",
        PRIVACY_AWARE,
        "each = share[clients] / jnp.where(probability > 0, probability, 1.0)[clients]",
        "each = share[clients]",
        f"{PRIVACY_AWARE_TEST}::test_clients_are_drawn_with_the_solvers_probabilities",
    ),
    Mutant(
        "noise_counts_as_the_updates_own_square",
        PRIVACY_AWARE,
        "jnp.sum(observation.update**2, axis=1) - noise, 0.0",
        "jnp.sum(observation.update**2, axis=1), 0.0",
        f"{PRIVACY_AWARE_TEST}::test_what_it_learns_of_updates_is_the_oracles",
    ),
    Mutant(
        "a_lost_update_counts_as_one_of_0",
        PRIVACY_AWARE,
        "received = selection.active & observation.received",
        "received = selection.active",
        f"{PRIVACY_AWARE_TEST}::test_what_it_learns_of_updates_is_the_oracles",
    ),
    Mutant(
        "a_large_group_is_noisier",
        PRIVACY_AWARE,
        "added(jnp.where(among, noise, 0.0)) / size",
        "added(jnp.where(among, noise, 0.0))",
        f"{PRIVACY_AWARE_TEST}::test_groups_are_sampled_at_the_solvers_ratios",
    ),
    Mutant(
        "the_noisiest_first",
        PRIVACY_AWARE,
        "top_clients(-noise, among",
        "top_clients(jnp.where(among, noise, 0.0), among",
        f"{PRIVACY_AWARE_TEST}::test_tolerant_first_takes_the_least_noise_and_ties_at_random",
    ),
    Mutant(
        "each_node_has_the_first_ones_budget",
        BUDGET,
        "self.total_epsilon * factors[client]",
        "self.total_epsilon * factors[0]",
        OWN_BUDGET_TEST,
    ),
    Mutant(
        "a_node_draws_its_own_budget",
        BUDGET,
        "if self.law.drawn:",
        "if False:",
        OWN_BUDGET_TEST,
    ),
    Mutant(
        "the_last_release_has_more_than_is_left",
        BUDGET,
        "jnp.minimum(left, self.per_release))",
        "self.per_release)",
        f"{BUDGET_LAW_TEST}::test_a_constant_schedule_gives_the_rest_last_and_then_nothing",
    ),
    Mutant(
        "a_law_replaces_the_budget",
        BUDGET,
        "total = self.total_epsilon * self.law.factors",
        "total = 1.0 * self.law.factors",
        f"{BUDGET_LAW_TEST}::test_budgets_come_from_a_file_by_the_ids_of_its_clients",
    ),
    Mutant(
        "an_epsilon_too_large_for_dp_accounting",
        LEDGER,
        "or epsilon.max() > MAX_RELEASE",
        "or epsilon.max() > 1e30",
        f"{ACCOUNTING_TEST}::test_a_release_of_an_epsilon_beyond_doubles_counts_as_it_is",
    ),
    Mutant(
        "shares_of_a_tier_by_its_total",
        "pause_jax/analysis/report/budgets.py",
        "float(np.mean(spent / budget))",
        "float(np.sum(spent) / np.sum(budget))",
        "tests/analysis/test_report.py::test_spent_shares_are_shown_by_tier_or_by_third_where_budgets_differ",
    ),
    # --- the rivals of 2020 to 2024
    Mutant(
        "e3cs_learns_of_those_that_are_always_in",
        E3CS,
        "observation.received & (probability < 1)",
        "observation.received & (probability <= 1)",
        E3CS_TEST,
    ),
    Mutant(
        "e3cs_learns_of_what_did_not_arrive",
        E3CS,
        "selection.active & observation.received & (",
        "selection.active & (",
        E3CS_TEST,
    ),
    Mutant(
        "e3cs_estimate_not_divided_by_probability",
        E3CS,
        "step / jnp.where(learns, probability, 1.0)",
        "step",
        E3CS_TEST,
    ),
    Mutant(
        "e3cs_update_forgets_who_was_absent",
        E3CS,
        "jnp.broadcast_to(observation.available, (num_clients,))",
        "jnp.ones(num_clients, bool)",
        E3CS_TEST,
    ),
    Mutant(
        "e3cs_draws_one_after_the_other",
        E3CS,
        "import by_data_size, dep_round, inclusion_probabilities\n",
        "import by_data_size, draw_clients, inclusion_probabilities\n\n"
        "def dep_round(p, m, key):\n    return draw_clients(p, p > 0, m, key)\n",
        E3CS_TEST,
    ),
    Mutant(
        "f3ast_absent_clients_take_part",
        F3AST,
        "active = available[clients]",
        "active = jnp.ones(m, bool)",
        F3AST_TEST,
    ),
    Mutant(
        "f3ast_chooses_by_terms_of_the_variance",
        F3AST,
        "top_clients(share / rate,",
        "top_clients(share**2 / rate,",
        F3AST_TEST,
    ),
    Mutant(
        "f3ast_weights_by_the_rates_before",
        F3AST,
        "later = next_rate(rate, clients, active)[clients]",
        "later = rate[clients]",
        F3AST_TEST,
    ),
    Mutant(
        "polaris_norm_in_place_of_its_square",
        POLARIS,
        "size = self.size_weight * scaled * state.bound",
        "size = self.size_weight * scaled",
        POLARIS_TEST,
    ),
    Mutant(
        "polaris_expects_nothing_of_the_unexplored",
        POLARIS,
        "~explored & (expected > 0)",
        "explored & (expected < 0)",
        POLARIS_TEST,
    ),
    Mutant(
        "polaris_late_counts_as_in_time",
        POLARIS,
        "0.1 + late.astype",
        "0.1 + 0 * late.astype",
        POLARIS_TEST,
    ),
    Mutant(
        "polaris_keeps_the_wrong_half",
        POLARIS,
        "jnp.where(too_much, middle, low), jnp.where(too_much, high, middle)",
        "jnp.where(too_much, low, middle), jnp.where(too_much, middle, high)",
        POLARIS_TEST,
    ),
    Mutant(
        "polaris_absent_clients_set_the_least_staleness",
        POLARIS,
        "jnp.min(jnp.where(among, stale, jnp.inf))",
        "jnp.min(stale)",
        POLARIS_TEST,
    ),
    Mutant(
        "refl_asks_about_the_slot_that_begins_now",
        REFL,
        "for n in (1.0, 2.0)",
        "for n in (0.0, 1.0)",
        REFL_TEST,
    ),
    Mutant(
        "refl_chooses_one_too_few",
        REFL,
        "jnp.maximum(m - state.due, 1)",
        "jnp.maximum(m - state.due - 1, 1)",
        REFL_TEST,
    ),
    Mutant(
        "refl_lost_updates_count_as_due",
        REFL,
        "active & observation.late",
        "active & ~observation.received",
        REFL_TEST,
    ),
    Mutant(
        "refl_prefers_those_who_stay",
        REFL,
        "top_clients(-likely,",
        "top_clients(likely,",
        REFL_TEST,
    ),
    Mutant(
        "stale_update_keeps_nine_tenths_of_the_boost",
        STALENESS,
        "jnp.where(most > 0, most, 1.0))\n",
        "jnp.where(most > 0, most, 1.0)) / 10\n",
        STALENESS_TEST,
    ),
    Mutant(
        "stale_updates_are_not_damped",
        STALENESS,
        "before = before * damping(",
        "before = before + 0 * damping(",
        f"{ARRIVAL_TEST}::test_stale_updates_can_have_the_weights_of_refl",
    ),
    Mutant(
        "lost_update_observed_as_late",
        ROUND,
        'late=ending.stale & (setup.config.stale_updates == "next")',
        "late=ending.stale",
        OBSERVED_TEST,
    ),
    Mutant(
        "observed_time_of_the_start",
        ROUND,
        "        clock=clock,\n        server_loss",
        "        clock=before.clock,\n        server_loss",
        OBSERVED_TEST,
    ),
    Mutant(
        "server_observes_that_all_were_available",
        SELECTOR,
        "seen._replace(available=jnp.asarray(self._here))",
        "seen",
        f"{SELECTOR_TEST}::test_fed_with_a_simulation_it_chooses_what_simulate_chooses[e3cs]",
    ),
    Mutant(
        "forecast_of_phones_for_this_hour",
        "pause_jax/world/availability/phones.py",
        "jnp.ones(num_clients), clock + ahead, ahead",
        "jnp.ones(num_clients), clock, ahead",
        FORECAST_TEST,
    ),
    # --- aggregation
    Mutant(
        "aggregation_uniform",
        FEDAVG,
        "jnp.tensordot(weights, taken, axes=1)",
        "jnp.tensordot((weights > 0) / jnp.sum(weights > 0), taken, axes=1)",
    ),
    Mutant(
        "aggregation_normalised_twice",
        FEDAVG,
        "jnp.tensordot(weights, taken, axes=1)",
        "jnp.tensordot(weights / jnp.sum(weights > 0), taken, axes=1)",
    ),
    Mutant(
        "weights_by_quality",
        CHOOSE,
        "jnp.where(available[clients], context.data_size[clients], 0.0)",
        "jnp.where(available[clients], context.share[clients], 0.0)",
    ),
    Mutant(
        "silent_not_renormalised",
        ARRIVAL,
        "weights=weights * total / jnp.where(received > 0, received, 1.0)",
        "weights=weights",
        "spent_silent",
    ),
    Mutant(
        "running_statistics_forgotten",
        FEDAVG,
        'updates = {**updates, "params": released}',
        'updates = jax.tree.map(jnp.zeros_like, updates) | {"params": released}',
        "batch_norm",
    ),
    Mutant(
        "weights_in_the_clear_not_trained",
        LEARNER,
        "for name in TRAINED if name in variables",
        'for name in ("params",) if name in variables',
        "batch_norm",
    ),
    # --- keys
    Mutant(
        "privacy_key_of_all_clients",
        ROUND,
        "keys.of_clients(key, sending.clients)",
        "keys.of_clients(key, 0 * sending.clients)",
    ),
    Mutant(
        "privacy_key_of_training",
        ROUND,
        "release_of(setup.config.privacy, own.privacy, sending",
        "release_of(setup.config.privacy, own.training, sending",
    ),
    Mutant(
        "privacy_key_of_every_round",
        ROUND,
        "release_of(setup.config.privacy, own.privacy, sending",
        "release_of(setup.config.privacy, before.keys.privacy, sending",
    ),
    Mutant(
        "sample_order_of_every_round",
        ROUND,
        "*learner.train(own.training, before.learning",
        "*learner.train(before.keys.training, before.learning",
    ),
    Mutant(
        "sample_order_of_all_clients",
        FEDAVG,
        "draws.bits_of(key, clients, 1",
        "draws.bits_of(key, 0 * clients, 1",
    ),
    Mutant(
        "first_client_draws_the_keys_of_the_others",
        DRAWS,
        "[:, None] + np.uint32(1)",
        "[:, None]",
        DRAWS_TEST,
    ),
    Mutant(
        "one_word_of_two_twice",
        DRAWS,
        "    return jnp.stack(words, axis=-1)",
        "    return jnp.stack((words[0], words[0]), axis=-1)",
    ),
    Mutant(
        "noise_without_a_sign",
        DRAWS,
        "jnp.where(words & 1, magnitude, -magnitude)",
        "magnitude",
    ),
    Mutant(
        "input_noise_anew_each_round",
        FEDAVG,
        "partition, slot, state.inputs",
        "partition, slot, jax.random.fold_in(state.inputs, jax.random.bits(key))",
    ),
    Mutant(
        "availability_with_the_latency_key",
        WORLD,
        "jax.random.bernoulli(own.availability, ",
        "jax.random.bernoulli(own.latency, ",
    ),
    # The oracle draws with the named keys, and so believes what they are.
    Mutant(
        "availability_named_as_latency",
        KEYS,
        "2 * rounds + 1",
        "2 * rounds",
        KEYS_TEST,
    ),
    Mutant(
        "cohort_named_without_round",
        KEYS,
        "+ 1, rounds, rounds, rounds]",
        "+ 1, rounds, 0 * rounds, rounds]",
        KEYS_TEST,
    ),
    Mutant(
        "clients_named_alike",
        KEYS,
        "jax.random.fold_in(key, client)",
        "jax.random.fold_in(key, 0 * client)",
        KEYS_TEST,
    ),
    Mutant(
        "answers_named_as_training",
        KEYS,
        "    return every, of_all(within, jnp.stack([rounds] * 3, axis=1))",
        "    rare = of_all(within, jnp.stack([rounds] * 3, axis=1))\n"
        "    return every, rare.at[:, 2].set(every[:, 3])",
        KEYS_TEST,
    ),
    Mutant(
        "chosen_after_a_question_receive_twice",
        ROUND,
        "selection.active & ~asked.reached[selection.clients]",
        "selection.active",
        "tests/run/test_arrival.py::test_who_is_asked_for_a_loss_receives_the_model_once",
    ),
    Mutant(
        "programs_forget_how_many_samples_are_used",
        LEARNING,
        "Given(num_train=learning.data.num_train)",
        "Given()",
        "pause",
    ),
    # --- local training
    Mutant(
        "moments_of_the_next_client",
        FEDAVG,
        "jax.tree.map(lambda x: x[clients], state.clients)",
        "jax.tree.map(lambda x: jnp.roll(x, 1, axis=0)[clients], state.clients)",
    ),
    Mutant(
        "moments_of_empty_slots",
        FEDAVG,
        "store_active(kept, clients, new, active)",
        "store_active(kept, clients, new, active | True)",
    ),
    Mutant(
        "moments_forgotten",
        FEDAVG,
        "slot.opt_state if keep else fresh",
        "fresh",
    ),
    Mutant(
        "padding_trained_on",
        CLIENT,
        "weight = (i * batch + jnp.arange(batch) < used).astype",
        "weight = (jnp.arange(batch) < used).astype",
    ),
    Mutant(
        "padding_in_batch_statistics",
        CLIENT,
        "x, weight > 0, key)",
        "x, weight > -1, key)",
        "batch_norm",
    ),
    Mutant(
        "last_batch_dropped",
        CLIENT,
        "return -(-jnp.minimum(size, training.max_samples) // training.batch_size)",
        "return jnp.maximum(jnp.minimum(size, training.max_samples) // training.batch_size, 1)",
    ),
    Mutant(
        "equal_clients_lack_a_step",
        LEARNING,
        "equal_steps=-(-max_samples // self.batch_size)",
        "equal_steps=max_samples // self.batch_size",
        "fedavg",
    ),
    Mutant(
        "steps_of_the_shortest_client",
        COHORT,
        "jnp.max(steps)",
        "jnp.min(jnp.where(steps > 0, steps, 9))",
    ),
    Mutant(
        "window_from_the_start",
        CLIENT,
        "(window + shuffled) % size",
        "shuffled % size",
    ),
    Mutant(
        "input_noise_too_strong",
        CLIENT,
        "noise * input_range * (1 - quality) / 4",
        "noise * input_range * (1 - quality) / 2",
    ),
    Mutant(
        "input_noise_of_pixels_for_features",
        CLIENT,
        "input_range = 2.0 if data.pixel_max else 1.0",
        "input_range = 2.0",
        "regression",
    ),
    Mutant(
        "answers_without_input_noise",
        EVALUATION,
        "places, 0)]\n        x, y = client_inputs(training, rows, partition.quality[client]",
        "places, 0)]\n        x, y = client_inputs(training, rows, jnp.ones(())",
        "power_of_choice",
    ),
    # --- models
    Mutant(
        "kernel_not_turned_around",
        CONVOLUTION,
        "jnp.flip(kernel, (0, 1)).swapaxes(2, 3)",
        "kernel.swapaxes(2, 3)",
        "tests/learning/test_convolution.py::test_value_and_gradients_are_those_of_lax",
    ),
    Mutant(
        "gradient_of_a_kernel_a_pixel_off",
        CONVOLUTION,
        "((low, (m - 1) * s + k - n - low) for",
        "((0, (m - 1) * s + k - n) for",
        "tests/learning/test_convolution.py::test_value_and_gradients_are_those_of_lax",
    ),
    Mutant(
        "direct_for_many_features",
        CONVOLUTION,
        "features < FEATURES",
        "features > FEATURES",
        "tests/learning/test_convolution.py::"
        "test_a_cpu_convolves_by_products_unless_the_patches_leave_its_cache",
    ),
    Mutant(
        "block_without_its_shortcut",
        RESNET,
        "nn.relu(x + y)",
        "nn.relu(y)",
        "tests/learning/test_resnet.py::test_the_forward_pass_is_that_of_numpy[none-products-True]",
    ),
    Mutant(
        "strides_start_a_pixel_later",
        RESNET,
        "padding=(edge, edge),",
        'padding="SAME",',
        "tests/learning/test_resnet.py::test_the_forward_pass_is_that_of_numpy[none-products-True]",
    ),
    Mutant(
        "padding_in_statistics_of_blocks",
        RESNET,
        'f"norm_{name}", train, mask)',
        'f"norm_{name}", train, None)',
        "tests/learning/test_resnet.py::test_rows_that_fill_up_a_batch_stay_out_of_batch_statistics",
    ),
    # --- learning rate
    Mutant(
        "rate_of_the_next_round",
        LOCAL_SGD,
        "self.optimizer_at(round)",
        "self.optimizer_at(round + 1)",
        "step_decay",
    ),
    Mutant(
        "rounds_of_nobody_not_counted",
        LOCAL_SGD,
        "round = jnp.asarray(state.rounds) + 1",
        "round = jnp.asarray(state.rounds) + jnp.any(selection.active)",
        "step_decay",
    ),
    Mutant(
        "rate_rises",
        SCHEDULE,
        "** steps.astype(jnp.float32)",
        "** -steps.astype(jnp.float32)",
        "step_decay",
    ),
    Mutant(
        "steps_counted_in_floats",
        SCHEDULE,
        "(round - 1) // self.every",
        "((round - 1).astype(jnp.float32) * jnp.float32(1 / self.every)).astype(jnp.int32)",
        "tests/learning/test_schedule.py::test_step_decay_counts_in_whole_numbers",
    ),
    Mutant(
        "cosine_rises",
        SCHEDULE,
        "(1 + jnp.cos(jnp.pi * passed))",
        "(1 - jnp.cos(jnp.pi * passed))",
        "fedavg",
    ),
    Mutant(
        "cosine_a_round_late",
        SCHEDULE,
        "jnp.minimum((round - 1).astype(jnp.float32)",
        "jnp.minimum(round.astype(jnp.float32)",
        "fedavg",
    ),
    # --- budget
    Mutant(
        "epsilon_late",
        ROUND,
        "epsilon = budget.epsilon(before.counts + 1)",
        "epsilon = budget.epsilon(before.counts)",
    ),
    Mutant(
        "epsilon_of_the_first_slot",
        ROUND,
        "positive = jnp.where(active, epsilon, 1.0)",
        "positive = jnp.where(active, epsilon[0], 1.0)",
    ),
    Mutant(
        "epsilon_of_the_mean_participation",
        ROUND,
        "epsilon = budget.epsilon(before.counts + 1)",
        "epsilon = budget.epsilon(0 * before.counts + jnp.mean(before.counts) + 1)",
    ),
    Mutant(
        "spent_not_excluded",
        ROUND,
        "available &= ~exhausted",
        "available &= exhausted | True",
        "spent_excluded",
    ),
    Mutant(
        "silent_clients_heard",
        ROUND,
        "        received=ending.in_time,",
        "        received=selection.active,",
        "tests/run/test_when_spent.py",
    ),
    Mutant(
        "silent_loss_stored",
        "pause_jax/policies/power_of_choice.py",
        "received = selection.active & observation.received",
        "received = selection.active",
        "tests/run/test_when_spent.py",
    ),
    Mutant(
        "silent_utility_stored",
        "pause_jax/policies/oort.py",
        "received = active & observation.received",
        "received = active",
        "tests/run/test_when_spent.py",
    ),
    Mutant(
        "silent_clients_tell_their_loss",
        ROUND,
        "reported = ~seen.dropped[clients]",
        "reported = seen.dropped[clients] | True",
        "tests/run/test_when_spent.py",
    ),
    Mutant(
        "too_small_for_float32_taken_for_spent",
        ROUND,
        "exhausted = budget.exhausted(before.counts + 1)",
        "exhausted = budget.remaining(before.counts) < 1e-38",
        "tests/run/test_when_spent.py",
    ),
    Mutant(
        "epsilon_of_a_fading_budget_is_0",
        "pause_jax/privacy/budget.py",
        "jnp.maximum(self.total_epsilon * LEAST_SHARE, tiny)",
        "0.0",
        "tests/run/test_when_spent.py",
    ),
    Mutant(
        "max_spent_of_the_round_before",
        QUANTITIES,
        "budget.spent(r.after.counts)",
        "budget.spent(r.before.counts)",
    ),
    # --- statistics and index
    Mutant(
        "ucb_without_one",
        BANDIT,
        "(num_selected + 1) * log_round",
        "num_selected * log_round",
    ),
    Mutant(
        "counts_of_empty_slots",
        BANDIT,
        "add(took_part.astype(stats.counts.dtype))",
        "add(jnp.ones_like(took_part, stats.counts.dtype))",
    ),
    Mutant(
        "latency_of_other_clients",
        ROUND,
        "arrival(setup.config, seen.latency[clients], active,",
        "arrival(setup.config, seen.latency[: clients.size], active,",
    ),
    Mutant(
        "share_without_quality",
        PARTITION,
        "jnp.maximum(self.quality * self.size.astype(self.quality.dtype), 0.0)",
        "jnp.maximum(1.0 * self.size.astype(self.quality.dtype), 0.0)",
    ),
    # --- latency models
    Mutant(
        "negative_speed_the_slowest",
        SPEED,
        "jnp.ones_like(self.min_latency)",
        "jnp.asarray(self.min_latency)",
        "tests/world/test_latency.py::test_a_draw_of_the_speed_is_the_latency_by_its_rule",
    ),
    Mutant(
        "negative_speed_not_expected",
        SPEED,
        "norm.sf(b) + inside + negative",
        "norm.sf(b) + inside",
        LATENCY_TEST,
    ),
    Mutant(
        "negative_speed_not_in_expected_seconds",
        SPEED,
        "self.min_latency + inside - negative",
        "self.min_latency + inside",
        LATENCY_TEST,
    ),
    Mutant(
        "lognormal_inverse_not_shifted",
        TAILS,
        "norm.cdf(-cut - self.sigma)",
        "norm.cdf(-cut)",
        LATENCY_TEST,
    ),
    Mutant(
        "exponential_cut_forgotten",
        TAILS,
        "start + share * mean",
        "start + mean",
        "tests/world/test_latency.py::test_moments_match_quadrature_for_any_parameters",
    ),
    Mutant(
        "pareto_exponent_of_the_inverse",
        TAILS,
        "self.shape / (self.shape + 1)",
        "self.shape / (self.shape + 2)",
        LATENCY_TEST,
    ),
    Mutant(
        "traces_of_the_first_client",
        TRACES,
        "        return first + jax.random.randint(",
        "        return jax.random.randint(",
        TRACES_TEST,
    ),
    Mutant(
        "traces_mean_of_the_next_client",
        TRACES,
        "jnp.where(low < first + size, jnp.asarray(sums)[low], 0.0)",
        "jnp.asarray(sums)[low]",
        TRACES_TEST,
    ),
    Mutant(
        "traces_of_an_old_file",
        CONFIG,
        "latency=config.latency.loaded(),",
        "latency=config.latency,",
        TRACES_TEST,
    ),
    # --- reward and regret
    Mutant(
        "g_of_the_round_before",
        REWARD,
        "/ jnp.asarray(round, share.dtype)",
        "/ jnp.maximum(jnp.asarray(round, share.dtype) - 1, 1)",
    ),
    Mutant(
        "beta_of_two",
        REWARD,
        "jnp.abs(x) ** exponent",
        "jnp.abs(x) ** 2",
    ),
    Mutant(
        "p_not_weighted",
        REWARD,
        "reward.gamma * remaining / num_selected",
        "remaining / num_selected",
    ),
    Mutant(
        "regret_with_equal_shares",
        SCORE,
        "round, context.share, remaining",
        "round, jnp.full_like(context.share, 1 / context.num_clients), remaining",
    ),
    Mutant(
        "regret_clamped_at_zero",
        SCORE,
        "jnp.any(selection.active), 0.0, behind)",
        "jnp.any(selection.active), 0.0, jnp.maximum(behind, 0.0))",
        "tests/run/test_rounds.py::test_a_score_is_that_of_float64_and_its_regret_is_signed",
    ),
    Mutant(
        "reward_after_the_update",
        STATE,
        "self.before.counts,",
        "self.after.counts,",
    ),
    Mutant(
        "genie_by_empirical_means",
        STATE,
        "self.context,\n            self.before",
        "self.context._replace(expected_speed=self.before.policy.mean_speed), self.before",
    ),
    Mutant(
        "genie_regardless_of_availability",
        SCORE,
        "m, available=available)",
        "m)",
    ),
    Mutant(
        "regret_by_ucb",
        STATE,
        "self.context,\n            self.before",
        "self.context._replace(expected_speed=self.before.policy.mean_speed"
        " + jnp.sqrt(1 / (1 + self.before.counts))), self.before",
    ),
    # --- search
    Mutant(
        "neighbours_counted_in_int32",
        LANDSCAPE,
        "jnp.sum(leaving).astype(float) * jnp.sum(entering)",
        "(jnp.sum(leaving) * jnp.sum(entering)).astype(float)",
        "tests/bandit/test_search_annealing.py::test_a_walk_goes_on_where_neighbours_outnumber_int32",
    ),
    Mutant(
        "walk_rounds_by_the_order_of_addition",
        LANDSCAPE,
        "on_grid(problem.weight, num_selected)",
        "problem.weight",
        "tests/bandit/test_search_annealing.py::"
        "test_the_sum_of_weights_does_not_depend_on_the_order_of_addition",
    ),
    Mutant(
        "share_by_a_division",
        PARTITION,
        "weight * (1 / tree_sum(weight))",
        "weight / tree_sum(weight)",
        "tests/rng/test_summation.py::test_equal_shares_have_the_same_bits_in_a_sweep",
    ),
    # --- clock and record
    Mutant(
        "round_as_long_as_its_fastest",
        ARRIVAL,
        "jnp.max(jnp.where(active, latency, 0.0))",
        "jnp.min(jnp.where(active, latency, jnp.inf))",
    ),
    Mutant(
        "clock_without_queries",
        ROUND,
        "advanced(before.clock, before.clock_rest, ending.seconds)",
        "advanced(before.clock, before.clock_rest, ending.seconds - asked.seconds)",
        "power_of_choice",
    ),
    Mutant(
        "train_loss_unweighted",
        FEDAVG,
        "selection.weights * loss.mean",
        "loss.mean / jnp.sum(active)",
    ),
    Mutant(
        "evaluation_a_round_early",
        HORIZON,
        "(round % length.eval_every == 0)",
        "((round + 1) % length.eval_every == 0)",
    ),
    Mutant(
        "last_round_not_evaluated",
        HORIZON,
        " | (round == length.num_rounds)",
        "",
    ),
    Mutant(
        "round_starts_at_the_horizon",
        HORIZON,
        "clock >= config.max_seconds",
        "clock > config.max_seconds",
        HORIZON_TEST,
    ),
    Mutant(
        "end_by_the_clock_not_evaluated",
        STATE,
        " | has_ended(self.config, self.after.clock)",
        "",
        HORIZON_TEST,
    ),
    Mutant(
        "place_of_the_end_a_round_late",
        EVALUATIONS,
        "np.append(0, planned[:-1]) < played",
        "np.append(0, planned[:-1]) <= played",
        HORIZON_TEST,
    ),
    Mutant(
        "rounds_of_ended_runs_computed",
        BRANCH,
        "lax.cond(_by_any(wanted), worked",
        "lax.cond(wanted, worked",
        HORIZON_TEST,
    ),
    Mutant(
        "ended_runs_play_on_beside_others",
        BRANCH,
        "jnp.where(wanted, new, old)",
        "new",
        HORIZON_TEST,
    ),
    Mutant(
        "test_inputs_normalised_otherwise",
        EVALUATION,
        "dataset.to_input(dataset.x_test[rows])",
        "(dataset.to_input(dataset.x_test[rows]) + 1) / 2",
    ),
    # --- when rounds end, who is there
    Mutant(
        "waits_for_one_more",
        ARRIVAL,
        "arriving[config.wait_for - 1]",
        "arriving[config.wait_for]",
        ARRIVAL_TEST,
    ),
    Mutant(
        "waits_for_those_that_are_lost",
        ARRIVAL,
        "jnp.sort(jnp.where(answering, latency, jnp.inf))",
        "jnp.sort(jnp.where(active, latency, jnp.inf))",
        ARRIVAL_TEST,
    ),
    Mutant(
        "late_clients_seen_in_full",
        ARRIVAL,
        "jnp.minimum(latency, end), jnp.where(end > 0",
        "latency, jnp.where(end > 0",
        f"{SELECTOR_TEST}::test_fed_with_a_simulation_it_chooses_what_simulate_chooses[pause]",
    ),
    Mutant(
        "ties_by_place_not_by_start",
        FLIGHT,
        "jnp.argmin(jnp.where(first, slots.order, last))",
        "jnp.argmax(first)",
        BY_HAND,
    ),
    Mutant(
        "staleness_counted_from_the_next_version",
        FLIGHT,
        "number - own.version, own",
        "number - own.version + 1, own",
        BY_HAND,
    ),
    Mutant(
        "clock_of_slots_not_moved",
        FLIGHT,
        "slots.finish - seconds, 0.0",
        "slots.finish, 0.0",
        BY_HAND,
    ),
    Mutant(
        "a_client_of_the_buffer_starts_again",
        EVENTS,
        "jnp.where(slots.occupied, slots.client",
        "jnp.where(slots.under_way, slots.client",
        BY_HAND,
    ),
    Mutant(
        "the_step_waits_for_one_answer_more",
        EVENTS,
        "(events.answers < plan.buffer) & some",
        "(events.answers <= plan.buffer) & some",
        BY_HAND,
    ),
    Mutant(
        "starts_again_as_often_as_it_can",
        EVENTS,
        "(events.groups < plan.groups - 1)",
        "(events.groups >= 0)",
        f"{STEPS_TEST}test_events_of_rounds_give_rounds_bit_for_bit[absent-pause]",
    ),
    Mutant(
        "starts_charged_at_the_answer_of_nobody",
        EVENTS,
        "events.counts.at[clients].add(active.astype(jnp.int32))",
        "events.counts",
        f"{STEPS_TEST}test_nobody_is_under_way_twice_and_a_start_is_charged_at_once",
    ),
    Mutant(
        "told_of_no_answer_before_the_step",
        EVENTS,
        "        if at_once:",
        "        if False:",
        QUEUE.format("round_robin"),
    ),
    Mutant(
        "told_twice_of_an_answer",
        EVENTS,
        "reported=events.slots.answered)",
        "reported=events.reported)",
        QUEUE.format("pairs"),
    ),
    Mutant(
        "weights_of_a_group_not_by_its_size",
        FLIGHT,
        "own.weight * share, 0.0",
        "own.weight, 0.0",
        QUEUE.format("fedbuff"),
    ),
    Mutant(
        "staleness_weighs_nothing",
        ASYNCHRONOUS,
        "chosen.weights * factor)",
        "chosen.weights)",
        QUEUE.format("fedbuff"),
    ),
    Mutant(
        "too_old_is_averaged",
        FLIGHT,
        "averaged &= staleness <= bound",
        "averaged &= staleness <= bound + 1",
        QUEUE.format("everybody_under_way"),
    ),
    Mutant(
        "lost_updates_are_averaged",
        FLIGHT,
        "own.answered & own.sends",
        "own.answered",
        QUEUE.format("moments"),
    ),
    Mutant(
        "only_one_cohort_trains",
        ASYNCHRONOUS,
        "cohorts = -(-jnp.sum(_new(slots, number)) // plan.cohort)",
        "cohorts = 1",
        QUEUE.format("fedbuff"),
    ),
    Mutant(
        "pace_of_the_fastest_under_way",
        FLIGHT,
        "jnp.max(jnp.where(slots.under_way, flight.last[slots.client], 0.0))",
        "jnp.min(jnp.where(slots.under_way, flight.last[slots.client], jnp.inf))",
        QUEUE.format("paced_pairs"),
    ),
    Mutant(
        "pace_does_not_wait_for_an_answer",
        FLIGHT,
        "jnp.any(slots.answered) & (due < next_finish)",
        "(due < next_finish)",
        QUEUE.format("paced_pairs"),
    ),
    Mutant(
        "pace_of_latencies_never_learned",
        FLIGHT,
        'last.at[answered].set(slots.latency, mode="drop")',
        "last",
        f"{STEPS_TEST}test_at_a_pace_a_step_waits_for_the_first_answer_of_a_client",
    ),
    Mutant(
        "pace_moves_no_clock",
        EVENTS,
        "jnp.where(jnp.isfinite(at), at, played.now)",
        "played.now",
        QUEUE.format("paced_pairs"),
    ),
    Mutant(
        "a_policy_sees_no_staleness",
        EVENTS,
        "jnp.where(new, buffer.staleness, 0)",
        "0 * buffer.staleness",
        QUEUE.format("stale"),
    ),
    Mutant(
        "pisces_lag_of_the_first_updates",
        PISCES,
        "jnp.column_stack([state.lag[clients][:, 1:], new])",
        "state.lag[clients].at[:, 0].set(new)",
        PISCES_TEST,
    ),
    Mutant(
        "pisces_lag_not_by_what_is_known",
        PISCES,
        "jnp.sum(state.lag, axis=1) / known",
        "jnp.mean(state.lag, axis=1)",
        PISCES_TEST,
    ),
    Mutant(
        "pisces_explores_whom_it_knows",
        PISCES,
        "rest = jnp.where(fresh, -1.0, self.scores(state))",
        "rest = self.scores(state)",
        PISCES_TEST,
    ),
    Mutant(
        "pisces_exploration_does_not_fade",
        PISCES,
        "self.exploration * self.exploration_decay",
        "self.exploration + 0 * self.exploration_decay",
        PISCES_TEST,
    ),
    Mutant(
        "a_lost_update_is_useful",
        INDEX_RULES,
        "jnp.where(observation.received, fresh, 0.0)",
        "fresh",
        f"{INDEX_TEST}test_a_stale_update_is_less_useful_and_a_lost_one_is_not",
    ),
    Mutant(
        "useful_rate_is_the_mean_speed",
        INDEX_RULES,
        "jnp.where(active, 1.0 / speed, 0.0)",
        "jnp.where(active, 1.0, 0.0)",
        f"{INDEX_TEST}test_useful_rate_is_useful_updates_over_seconds",
    ),
    Mutant(
        "a_server_is_told_of_answers_before_its_step_alone",
        ASYNCHRONOUS_SELECTOR,
        "if self._at_once and self._unheard:",
        "if False:",
        f"{ASYNCHRONOUS_SELECTOR_TEST}test_fed_with_a_simulation_it_chooses_what_simulate_chooses",
    ),
    Mutant(
        "a_server_starts_clients_of_its_buffer",
        ASYNCHRONOUS_SELECTOR,
        "present[[*self._starts, *self._buffer]] = False",
        "present[[*self._starts]] = False",
        f"{ASYNCHRONOUS_SELECTOR_TEST}test_fed_with_a_simulation_it_chooses_what_simulate_chooses",
    ),
    Mutant(
        "a_saved_server_forgets_who_is_under_way",
        ASYNCHRONOUS_SELECTOR,
        'for name in ("starts", "buffer")\n        )',
        'for name in ("buffer", "buffer")\n        )',
        f"{ASYNCHRONOUS_SELECTOR_TEST}test_saved_and_loaded_after_some_answers_it_goes_on",
    ),
    Mutant(
        "hinge_without_one",
        CLOCK,
        "self.grace, 0.0) + 1.0)",
        "self.grace, 0.0) + 2.0)",
        f"{STEPS_TEST}test_staleness_laws",
    ),
    Mutant(
        "a_field_hides_a_quantity",
        CONFIG_SUMMARY,
        'f"{path}.name" if path in whole else path',
        "path",
        "tests/sweeps/test_overlapping.py::"
        "test_the_clock_of_a_run_and_the_clock_of_its_config_have_two_names",
    ),
    Mutant(
        "late_updates_averaged_twice",
        STALENESS,
        "now, before = jnp.where(is_stale, 0.0, weights), stale.weights",
        "now, before = weights, stale.weights",
        ARRIVAL_TEST,
    ),
    Mutant(
        "late_weights_not_scaled",
        STALENESS,
        "both / jnp.where(total > 0, total, 1.0)",
        "both",
        ARRIVAL_TEST,
    ),
    Mutant(
        "late_updates_held_for_ever",
        ROUND,
        "        stale=learned.stale,",
        "        stale=before.stale,",
        ARRIVAL_TEST,
    ),
    Mutant(
        "drop_outs_by_the_availability_key",
        WORLD,
        "jax.random.bernoulli(own.dropout, ",
        "jax.random.bernoulli(own.availability, ",
        ARRIVAL_TEST,
    ),
    Mutant(
        "lost_updates_counted_as_sent",
        ROUND,
        "jnp.sum(ending.in_time | ending.stale)",
        "jnp.sum(selection.active)",
        f"{ARRIVAL_TEST}::test_bytes_are_those_of_the_model_times_who_received_and_sent_it",
    ),
    Mutant(
        "present_though_away",
        WORLD,
        "return free & here, state",
        "return free, state",
        PRESENCE_TEST,
    ),
    Mutant(
        "a_chain_that_forgets",
        ROUND,
        "        availability_trace=seen.availability_trace,\n",
        "        availability_trace=before.availability_trace,\n",
        PRESENCE_TEST,
    ),
    Mutant(
        "no_time_while_nobody_is_there",
        ROUND,
        "asked.seconds + trace.recheck",
        "asked.seconds",
        PRESENCE_TEST,
    ),
    Mutant(
        "intervals_closed_at_the_end",
        INTERVALS,
        "(start <= clock) & (clock < end)",
        "(start <= clock) & (clock <= end)",
        PRESENCE_TEST,
    ),
    Mutant(
        "begins_before_the_period",
        PRESENCE,
        "clock % self.period / self.period - begins",
        "clock % self.period / self.period + begins",
        PRESENCE_TEST,
    ),
    Mutant(
        "upload_at_the_downloads_rate",
        NETWORK,
        '8e-6 / table["upload_mbit"]',
        '8e-6 / table["download_mbit"]',
        NETWORK_TEST,
    ),
    Mutant(
        "samples_of_the_whole_client",
        SETUP,
        "given(Work(size, size, local_samples))",
        "given(Work(size, size, data_size))",
        NETWORK_TEST,
    ),
    Mutant(
        "question_with_the_choices_key",
        SELECTOR,
        "keys.question_and_choice(keys.choice(self._key, self.round + 1))[0]",
        "keys.question_and_choice(keys.choice(self._key, self.round + 1))[1]",
        f"{SELECTOR_TEST}::test_a_policy_that_asks_first_chooses_what_simulate_chooses",
    ),
    # --- the compiler
    Mutant(
        "kernels_that_are_wrong",
        "pause_jax/__init__.py",
        '_KERNELS = "--xla_cpu_experimental_ynn_fusion_type="',
        '_KERNELS = "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_REDUCE"',
        COMPILER_TEST,
    ),
    # --- what a user meets
    Mutant(
        "an_array_for_a_choice",
        "pause_jax/base/checks.py",
        "if not isinstance(value, str) or value not in rule.choices:",
        "if value not in rule.choices:",
        "tests/config/test_generated_configs.py::"
        "test_every_field_takes_every_weird_value_or_refuses_it_in_one_line",
    ),
    Mutant(
        "a_table_without_room",
        "pause_jax/analysis/table.py",
        "if spare < 0:",
        "if spare < -9:",
        "tests/analysis/test_tables.py",
    ),
    Mutant(
        "memory_of_one_run",
        SIZES,
        "num_runs * recorded_bytes(quantities, config),",
        "recorded_bytes(quantities, config),",
        "tests/run/test_arguments.py::test_how_much_fits_is_asked_of_the_machine",
    ),
    Mutant(
        "a_damaged_cache_is_read",
        "pause_jax/learning/decoded.py",
        "except Exception as error:  # NumPy",
        "except OSError as error:  # NumPy",
        "tests/learning/test_data.py",
    ),
    # --- experiments
    Mutant(
        "prediction_as_of_a_mean",
        "experiments/mnist_mlp_30_5/prediction.py",
        "np.sqrt(1 + 1 / ours.size)",
        "np.sqrt(1 / ours.size)",
        "tests/experiments/test_prediction.py",
    ),
    # --- reports
    Mutant(
        "seeds_that_are_left_out_decide",
        PAIRED,
        "if self.pairs < self.seeds:",
        "if not self.pairs:",
        "tests/analysis/test_paired.py",
    ),
    Mutant(
        "the_best_as_if_named_beforehand",
        COMPARISON,
        "comparisons = others if against else",
        "comparisons = others if chosen else",
        "tests/analysis/test_comparison.py",
    ),
    Mutant(
        "labels_become_html",
        PAGE,
        "autoescape=True",
        "autoescape=False",
        "tests/analysis/test_report.py",
    ),
    Mutant(
        "labels_end_their_script",
        PAGE,
        'text.replace("<", "\\\\u003c")',
        "text",
        "tests/analysis/test_report.py",
    ),
    Mutant(
        "looks_by_place_not_by_name",
        "pause_jax/analysis/styles.py",
        "style_at(KNOWN.index(label) if label in KNOWN else next(free))",
        "style_at(next(free))",
        "tests/analysis/test_colours.py::test_a_policy_looks_the_same_whatever_stands_beside_it",
    ),
    Mutant(
        "slowest_clients_first",
        "pause_jax/analysis/participation.py",
        "np.argsort(each.seconds,",
        "np.argsort(-each.seconds,",
        "tests/analysis/test_participation.py::test_clients_are_in_the_order_of_their_speed",
    ),
    Mutant(
        "unsettled_by_the_seeds_left",
        COMPARISON,
        "if each.pairs == each.seeds and not each.shown",
        "if not each.shown",
        "tests/analysis/test_comparison.py::"
        "test_who_missed_the_target_in_a_seed_is_not_compared_by_time",
    ),
    Mutant(
        "more_is_always_better",
        COMPARISON,
        "goal.better if each.shown == goal.sign",
        "goal.better if each.shown > 0",
        "tests/analysis/test_comparison.py::test_a_clear_difference_is_said_with_its_interval",
    ),
    Mutant(
        "legends_keep_the_height_of_one_row",
        "pause_jax/analysis/report/page.js",
        "return fit();",
        "return view;",
        "tests/analysis/test_report_browser.py::"
        "test_nothing_is_cut_on_a_screen_or_a_phone_that_is_turned",
    ),
    Mutant(
        "labels_on_each_other",
        "pause_jax/analysis/plotting.py",
        "min(heights[i], heights[i - 1] - gap)",
        "min(heights[i], heights[i - 1])",
        "tests/analysis/test_plotting.py",
    ),
    Mutant(
        "text_of_figures_as_outlines",
        "pause_jax/analysis/plotting.py",
        '"svg.fonttype": "none"',
        '"svg.fonttype": "path"',
        "tests/analysis/test_plotting.py::"
        "test_every_figure_is_a_picture_and_two_vector_files_with_text",
    ),
    # --- files from elsewhere
    Mutant(
        "config_file_calls_anything",
        "pause_jax/base/reference.py",
        "if not admits(found):",
        "if False:",
        f"{HOSTILE_TEST}::test_a_config_file_runs_nothing[shell]",
    ),
    Mutant(
        "config_file_imports",
        "pause_jax/base/reference.py",
        "found: Any = sys.modules.get(module)",
        "found: Any = importlib.import_module(module)",
        f"{HOSTILE_TEST}::test_a_config_file_runs_nothing[import]",
    ),
    Mutant(
        "kind_of_module_not_checked",
        "pause_jax/learning/custom_model.py",
        "return issubclass(given, kinds) if isinstance(given, type)",
        "return True if isinstance(given, type)",
        f"{HOSTILE_TEST}::test_a_config_file_runs_nothing[process]",
    ),
    Mutant(
        "config_file_trusted_by_default",
        "pause_jax/config/config_file.py",
        "def load(path: str | pathlib.Path, *, trust: bool = False)",
        "def load(path: str | pathlib.Path, *, trust: bool = True)",
        f"{HOSTILE_TEST}::test_python_reads_a_file_as_the_program_does",
    ),
    Mutant(
        "device_is_read",
        "pause_jax/base/source_file.py",
        "if not stat.S_ISREG(found.st_mode):",
        "if stat.S_ISDIR(found.st_mode):",
        f"{HOSTILE_TEST}::test_a_config_file_runs_nothing[latency from null]",
    ),
    Mutant(
        "code_of_a_community_fetched",
        "pause_jax/learning/tensorflow_datasets.py",
        "if not _NAME.fullmatch(self.source.dataset):",
        "if not self.source.dataset:",
        f"{HOSTILE_TEST}::test_a_config_file_runs_nothing[a data set elsewhere]",
    ),
    Mutant(
        "name_leaves_the_results",
        RESULT_FOLDER,
        "if not plain or len(name.encode()) > _LONGEST_NAME:",
        "if not name:",
        f"{HOSTILE_TEST}::test_a_name_stays_in_the_folder_of_results",
    ),
    Mutant(
        "link_leaves_the_results",
        RESULT_FOLDER,
        "        if path.is_symlink():",
        "        if False:",
        f"{HOSTILE_TEST}::test_a_link_does_not_lead_results_elsewhere",
    ),
    Mutant(
        "cell_is_a_formula",
        "pause_jax/analysis/csv_file.py",
        "if not isinstance(cell, str) or not cell.startswith(_FORMULA):",
        "if True:",
        f"{HOSTILE_TEST}::test_a_cell_is_no_formula",
    ),
    Mutant(
        "number_is_escaped",
        "pause_jax/analysis/csv_file.py",
        "        float(cell)\n",
        "        int(cell)\n",
        f"{HOSTILE_TEST}::test_a_cell_is_no_formula",
    ),
    Mutant(
        "force_removes_what_is_listed_outside",
        RESULT_FOLDER,
        "isinstance(name, str) and _is_inside(folder, name)}",
        "isinstance(name, str)}",
        f"{HOSTILE_TEST}::test_a_list_from_elsewhere_removes_nothing_outside",
    ),
    Mutant(
        "force_removes_all",
        RESULT_FOLDER,
        "    earlier, kept = manifest(folder), {RUN, keep}",
        "    kept = {RUN, keep}\n"
        "    earlier = {str(p.relative_to(folder)) for p in folder.rglob('*.*')}",
        f"{HOSTILE_TEST}::test_force_removes_what_the_list_names_and_nothing_else",
    ),
    Mutant(
        "force_overwrites_what_no_run_wrote",
        RESULT_FOLDER,
        "if os.path.lexists(folder / name) and name not in ours:",
        "if False:",
        f"{HOSTILE_TEST}::test_what_no_run_wrote_is_not_overwritten",
    ),
    Mutant(
        "endless_store_accepted",
        "pause_jax/sweeps/store.py",
        "if runs != [plan.num_runs for plan in kept.plans]:",
        "if len(runs) != len(kept.plans):",
        f"{HOSTILE_TEST}::test_a_store_from_elsewhere_is_refused",
    ),
    # --- chunks in other processes
    Mutant(
        "a_later_worker_of_another_processor",
        "pause_jax/sweeps/workers.py",
        "if fingerprint(plan.made_by) != task.made_by:",
        "if False:",
        f"{WORKERS_TEST}::test_a_later_worker_of_another_processor_is_refused_and_finished_runs_are_kept",
    ),
    Mutant(
        "the_processor_of_the_client_counts",
        "pause_jax/sweeps/workers.py",
        'plan.made_by["machine"] | processor',
        'plan.made_by["machine"]',
        f"{WORKERS_TEST}::test_the_processor_of_the_client_does_not_matter",
    ),
    Mutant(
        "a_chunk_of_another_shard_runs",
        "pause_jax/sweeps/execute.py",
        "if not self._claims.claim(lease):",
        "if self._claims.claim(lease) is None:",
        f"{WORKERS_TEST}::test_a_shard_leaves_what_others_run_and_runs_damaged_chunks_again",
    ),
    Mutant(
        "an_empty_lease_stays_for_ever",
        "pause_jax/sweeps/leases.py",
        "return now - since >= UNWRITTEN",
        "return False",
        f"{WORKERS_TEST}::test_the_lease_of_a_process_that_died_before_it_wrote_it_is_taken",
    ),
    Mutant(
        "a_chunk_is_written_in_place",
        "pause_jax/sweeps/store.py",
        'with beside.open("wb") as file:',
        'with path.open("wb") as file:',
        f"{CRASHES_TEST}[a sweep]",
    ),
    Mutant(
        "an_empty_lease_is_taken_at_once",
        "pause_jax/sweeps/leases.py",
        "return now - since >= UNWRITTEN",
        "return True",
        f"{WORKERS_TEST}::test_the_lease_of_a_process_that_died_before_it_wrote_it_is_taken",
    ),
    Mutant(
        "a_finished_chunk_of_another_shard_runs",
        "pause_jax/sweeps/execute.py",
        "if self._store.path(self._group, first).exists():",
        "if False:",
        f"{WORKERS_TEST}::test_a_shard_skips_what_another_finished_after_it_looked",
    ),
    # --- tune, and the contract of a custom policy
    Mutant(
        "finalists_meet_the_seeds_of_the_search",
        TUNING,
        "jax.random.split(fresh_key, fresh)",
        "jax.random.split(search_key, fresh)",
        "tests/test_tuning.py::test_finalists_meet_seeds_that_the_search_has_not_seen",
    ),
    Mutant(
        "runs_without_a_score_are_left_out",
        TUNING,
        "rest.where(missing == 0, worse)",
        "rest.where(table.scored > 0, worse)",
        "tests/test_tuning.py::test_a_search_among_configs_that_diverge_chooses_a_finite_one",
    ),
    Mutant(
        "optuna_is_told_the_mean",
        TUNING,
        'study.tell(each, row["badness"])',
        'study.tell(each, np.nan_to_num(row["mean"]))',
        "tests/test_tuning.py::test_a_search_among_configs_that_diverge_chooses_a_finite_one",
    ),
    Mutant(
        "the_config_of_the_start_is_never_chosen",
        TUNING,
        "finalists.badness[::-1].idxmin()",
        "finalists.badness[:-1].idxmin()",
        "tests/test_tuning.py::test_the_initial_config_is_chosen_if_none_is_better",
    ),
    Mutant(
        "broken_runs_have_a_score",
        TUNING,
        ".where(result.first_broken_round <= 0)",
        "",
        "tests/test_tuning.py::test_runs_that_broke_a_contract_have_no_score",
    ),
    Mutant(
        "a_target_never_reached_counts_as_the_whole_run",
        TUNING,
        "functools.partial(metrics.time_to_accuracy, target=target)",
        "lambda r: metrics.time_to_accuracy(r, target).fillna(r.eval_clock.max())",
        "tests/test_tuning.py::test_a_target_that_was_never_reached_has_no_seconds",
    ),
    Mutant(
        "an_undeclared_loss_arrives",
        POLICY,
        "        if not config.releases:\n            unread",
        "        if config is None:\n            unread",
        "tests/policies/test_declared.py::"
        "test_a_policy_that_reads_what_it_does_not_declare_is_refused_before_any_run",
    ),
    Mutant(
        "a_question_for_losses_needs_no_word",
        POLICY,
        'built.query.wants == "loss" and',
        'built.query.wants == "losses" and',
        "tests/policies/test_declared.py::"
        "test_a_policy_that_reads_what_it_does_not_declare_is_refused_before_any_run",
    ),
    Mutant(
        "arrays_of_a_traced_policy_are_not_compared",
        INSPECTION,
        "text = operations, *(_shown(each) for each in _constants(closed))",
        "text = (operations,)",
        "tests/policies/test_declared.py::test_a_policy_that_remembers_in_python_is_found",
    ),
    Mutant(
        "equal_keys_pass",
        "pause_jax/run/arguments.py",
        "if before != place:",
        "if before > place:",
        "tests/policies/test_declared.py::test_equal_keys_are_refused_wherever_there_are_several",
    ),
    Mutant(
        "a_broken_contract_is_not_said",
        SIMULATE,
        "contract.warn({label",
        "str({label",
        "tests/policies/test_declared.py::test_a_run_that_broke_its_contract_warns_once",
    ),
    # --- measured fleets, and a policy on a server
    Mutant(
        "normal_law_without_its_means",
        LAWS,
        'return Law("normal", _gaussian(size, squares), spread, mean)',
        'return Law("normal", _gaussian(size, squares) + 0.5 * np.log(size), spread, mean)',
        DENSITY_TEST,
    ),
    Mutant(
        "pareto_law_without_its_shift",
        LAWS,
        "(size - 1) * math.log(best) - np.log(size) - best",
        "(size - 1) * math.log(best) - best",
        DENSITY_TEST,
    ),
    Mutant(
        "exponential_law_without_its_shift",
        LAWS,
        "- size * np.log(size * mean) + logs)",
        "- size * np.log(size * mean) + logs + np.log(size))",
        DENSITY_TEST,
    ),
    Mutant(
        "one_client_decides_the_law",
        LAWS,
        "by.sum() - by.max() <= DECISIVE",
        "by.sum() <= DECISIVE",
        f"{FLEET_TEST}::test_one_client_alone_decides_no_law",
    ),
    Mutant(
        "drift_of_one_client_less",
        FLEET,
        "stats.chi2.sf(float(z @ z), len(rows))",
        "stats.chi2.sf(float(z @ z), len(rows) - 1)",
        HONEST_TEST,
    ),
    Mutant(
        "correlation_of_few_is_below_0",
        FLEET,
        "figure, total = (top - expected) / bottom",
        "figure, total = top / bottom",
        HONEST_TEST,
    ),
    Mutant(
        "change_of_halves_exchanged",
        FLEET,
        "row[len(row) // 2 :].mean() / row[: len(row) // 2].mean()",
        "row[: len(row) // 2].mean() / row[len(row) // 2 :].mean()",
        f"{FLEET_TEST}::test_the_change_is_the_second_half_by_the_first",
    ),
    Mutant(
        "spreads_of_download_and_upload",
        NETWORK,
        'for part in ("sample", "download", "upload")], axis=1)',
        'for part in ("sample", "upload", "download")], axis=1)',
        f"{NETWORK_TEST}::test_each_part_spreads_by_its_own_number",
    ),
    Mutant(
        "network_kink_is_not_split",
        NETWORK,
        "return jnp.clip(jnp.log(left) / jnp.maximum(spread, 1e-6), -_REACH, _REACH)",
        "return jnp.zeros_like(left)",
        KINK_TEST,
    ),
    Mutant(
        "clients_switch_a_round_early",
        TAILS,
        "((round - 1) // self.period * step)",
        "(round // self.period * step)",
        f"{FLEET_TEST}::test_switching_clients_change_places_and_the_genie_knows",
    ),
    Mutant(
        "rounds_of_a_log_are_closed_up",
        TRACES,
        'if self.order == "played" and measured.by_round:',
        'if self.order == "every" and measured.by_round:',
        LOG_TEST,
    ),
    Mutant(
        "an_empty_cell_is_an_answer",
        WORLD,
        "some = config.dropout is not None or model.drops",
        "some = config.dropout is not None",
        LOG_TEST,
    ),
    Mutant(
        "slow_clients_are_far_too",
        SPEEDS,
        "jnp.min(latency.expected_latency",
        "jnp.max(latency.expected_latency",
        "tests/run/test_speeds.py::test_latencies_in_seconds_are_not",
    ),
    Mutant(
        "selector_knows_no_work",
        SELECTOR,
        "            model,\n            data_size=size,",
        "            config.latency,\n            data_size=size,",
        CONTEXT_TEST,
    ),
    Mutant(
        "selector_trains_on_all_samples",
        SELECTOR,
        "if type(learning) is Learning:",
        "if learning is None:",
        CONTEXT_TEST,
    ),
    Mutant(
        "ends_as_sure_as_their_clients",
        LAWS,
        "off = max(1.0, float(residual @ residual) / max(scale.size - 2, 1))",
        "off = 1.0",
        f"{FLEET_TEST}::test_scales_that_are_not_spaced_equally_have_larger_errors",
    ),
    Mutant(
        "least_latency_of_the_slowest",
        "pause_jax/cli/fit.py",
        "0.5 * float(found.mean.min())",
        "0.5 * float(found.mean.max())",
        f"{FLEET_TEST}::test_the_command_prints_and_writes_a_model_that_runs",
    ),
    Mutant(
        "selector_epsilon_of_the_round_before",
        SELECTOR,
        "self._epsilon(self.counts + 1)",
        "self._epsilon(self.counts)",
        f"{SELECTOR_TEST}::test_a_failed_client_has_spent_its_budget_unless_it_was_idle",
    ),
    Mutant(
        "selector_hears_who_failed",
        "pause_jax/deploy/selector/reports.py",
        "known[slot], received[slot] = True, client in reports.seconds",
        "known[slot], received[slot] = True, True",
        f"{SELECTOR_TEST}::test_of_who_fails_only_the_seconds_are_seen",
    ),
    Mutant(
        "loaded_selector_draws_from_another_key",
        SELECTOR,
        '        self._key = jax.random.wrap_key_data(jnp.asarray(kept["key"]))\n',
        "",
        f"{SELECTOR_TEST}::test_a_loaded_selector_draws_on_from_its_key",
    ),
    # --- numbers of long runs and slow schedules, rounds in which nobody answers, guarantees
    Mutant(
        "a_plain_clock",
        HORIZON,
        "clock, rest = add(clock, rest, jnp.minimum(seconds, LONGEST))",
        "clock = clock + jnp.minimum(seconds, LONGEST)",
        CLOCK_TEST,
    ),
    Mutant(
        "rest_of_the_clock_forgotten",
        ROUND,
        "        clock_rest=clock_rest,",
        "        clock_rest=before.clock_rest,",
        CLOCK_TEST,
    ),
    Mutant(
        "a_clock_without_end",
        HORIZON,
        "return jnp.minimum(clock, LONGEST), jnp.where",
        "return clock, jnp.where",
        f"{CLOCK_TEST}::test_a_clock_stops_before_it_overflows_and_never_goes_back",
    ),
    Mutant(
        "spent_by_difference",
        BUDGET,
        "-self.total_epsilon * jnp.expm1(-self.decay * _real(participations))",
        "self.total_epsilon * (1 - jnp.exp(-self.decay * _real(participations)))",
        PRIVACY_TEST,
    ),
    Mutant(
        "first_epsilon_overflows",
        BUDGET,
        "return self.at_least_something(-jnp.expm1(-self.decay) * left)",
        "return self.at_least_something(jnp.expm1(self.decay) * left * jnp.exp(-self.decay))",
        f"{PRIVACY_TEST}::test_a_first_release_of_a_fast_schedule_does_not_overflow",
    ),
    Mutant(
        "powers_by_difference",
        BUDGET,
        "share = partial_zeta(s, _real(participations)) / zeta(s, jnp.ones_like(s))",
        "share = 1 - self.remaining(participations)",
        PRIVACY_TEST,
    ),
    Mutant(
        "client_of_an_empty_slot_observed",
        ARRIVAL,
        "jnp.where(end > 0, end, 1.0))",
        "latency)",
        "tests/run/test_arrival.py::test_a_policy_observes_nothing_of_an_empty_slots_client",
    ),
    Mutant(
        "question_of_an_empty_round_costs_nothing",
        ROUND,
        "jnp.where(jnp.any(active), seconds, asked.seconds + trace.recheck)",
        "jnp.where(jnp.any(active), seconds, trace.recheck)",
        "tests/run/test_rounds.py::test_a_question_takes_its_seconds_when_nobody_is_chosen_after_it",
    ),
    Mutant(
        "candidates_halved_a_round_early",
        "pause_jax/policies/power_of_choice.py",
        "2 * round > num_rounds",
        "2 * round >= num_rounds",
        "tests/policies/test_power_of_choice.py::test_schedules",
    ),
    Mutant(
        "server_momentum_without_updates",
        FEDAVG,
        "received = jnp.any(weights > 0)",
        "received = jnp.asarray(True)",
        "tests/run/test_arrival.py::test_server_momentum_waits_for_an_update",
    ),
    Mutant(
        "square_loss_of_0_for_the_unheard",
        ROUND,
        "jnp.where(missing, jnp.nan, trained.square_loss)",
        "jnp.where(missing, 0.0, trained.square_loss)",
        "tests/run/test_arrival.py"
        "::test_a_policy_observes_no_loss_of_an_update_that_did_not_arrive[lost]",
    ),
    Mutant(
        "moments_of_updates_that_are_lost",
        FEDAVG,
        "return store_active(kept, clients, new, active)",
        "return store_active(kept, clients, new, True | active)",
        "tests/run/test_arrival.py"
        "::test_what_a_client_keeps_advances_with_an_update_that_reaches_the_server",
    ),
    Mutant(
        "direction_takes_all_of_epsilon",
        SPHERE,
        "priv_unit_g(key, unit, (1 - self.norm_share) * epsilon)",
        "priv_unit_g(key, unit, epsilon)",
        f"{MECHANISMS_TEST}::test_private_length_leaves_the_direction_the_rest_of_epsilon",
    ),
    Mutant(
        "noise_by_the_public_key",
        PROJECTION,
        "jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)",
        "jax.random.fold_in(key, 0), jax.random.fold_in(key, 0)",
        f"{MECHANISMS_TEST}::test_a_projection_hands_on_a_key_that_its_public_part_does_not_know",
    ),
    Mutant(
        "traced_numbers_unchecked",
        CONFIG,
        "jnp.asarray(leaf, jnp.float32), marked(config))",
        "jnp.asarray(leaf, jnp.float32), config)",
        "tests/run/test_strict_modes.py::test_a_number_out_of_its_range_inside_of_a_jit_gives_nan",
    ),
    Mutant(
        "delta_of_the_least",
        LEDGER,
        "basic_delta=int(updates.max())",
        "basic_delta=int(updates.min())",
        ACCOUNTING_TEST,
    ),
    Mutant(
        "delta_of_silent_rounds",
        LEDGER,
        "basic_delta=int(updates.max())",
        "basic_delta=int(counts.max())",
        ACCOUNTING_TEST,
    ),
    Mutant(
        "resources_are_releases",
        LEDGER,
        "(queried if learns and config.policy.releases else 0)",
        "(queried if learns else 0)",
        ACCOUNTING_TEST,
    ),
    Mutant(
        "totals_of_a_ledger_exchanged",
        LEDGER_TABLE,
        "return book.tight, book.tight_at_most",
        "return book.tight_at_most, book.tight",
        ACCOUNTING_TEST,
    ),
    Mutant(
        "one_run_without_delta",
        AUDIT,
        "one_run_bound(canaries, guesses, v, delta, confidence)",
        "one_run_bound(canaries, guesses, v, 0.0, confidence)",
        "tests/privacy/test_audit.py::test_one_run_holds_the_delta_that_is_claimed",
    ),
    Mutant(
        "zero_has_a_direction",
        SPHERE,
        "jax.random.rademacher(sign_key, (), update.dtype)",
        "jnp.ones((), update.dtype)",
        f"{MECHANISMS_TEST}::test_an_update_of_zero_has_no_direction",
    ),
    Mutant(
        "projection_without_signs",
        PROJECTION,
        "jax.random.rademacher(sign_key, (padded,), update.dtype)",
        "jnp.ones((padded,), update.dtype)",
        f"{MECHANISMS_TEST}::test_projection_loses_the_stated_part_of_an_update_at_the_bound",
    ),
    Mutant(
        "projection_to_the_same_coordinates",
        PROJECTION,
        "jax.random.randint(choice_key, edges[1:].shape, edges[:-1], edges[1:])",
        "jnp.asarray(edges[:-1])",
        f"{MECHANISMS_TEST}::test_a_projection_draws_other_coordinates_each_time",
    ),
    Mutant(
        "projection_without_delta",
        PROJECTION,
        "return self.inner.delta",
        "return 0.0",
        "tests/privacy/test_mechanism_contract.py::test_a_projection_has_the_delta_of_its_inner_mechanism",
    ),
    # Who is who: ids of clients, and what a custom task may do.
    Mutant(
        "clients_are_sorted_as_texts",
        CLIENT_IDS,
        "sorted(set(known.values()), key=natural_order)",
        "sorted(set(known.values()))",
        "tests/base/test_client_ids.py::test_numbers_within_names_count_by_their_value",
    ),
    Mutant(
        "data_meets_other_clients_seconds",
        MATCHING,
        "if ids != own:",
        "if len(ids) != len(own):",
        "tests/base/test_client_ids.py::test_other_clients_are_refused_by_their_ids",
    ),
    Mutant(
        "drawn_clients_meet_lines_of_others",
        MATCHING,
        "        if files:\n",
        "        if not files:\n",
        "tests/base/test_client_ids.py::test_clients_that_the_key_draws_meet_no_file_of_particular_clients",
    ),
    Mutant(
        "a_gap_in_a_file_shifts_its_clients",
        MATCHING,
        "if not of_data and (missing",
        "if of_data and (missing",
        "tests/base/test_client_ids.py::test_numbers_with_gaps_need_data_with_the_same",
    ),
    Mutant(
        "the_test_set_takes_a_clients_last",
        "pause_jax/learning/dataset.py",
        "return np.delete(test, first[emptied])",
        "return test",
        "tests/base/test_client_ids.py::test_the_draw_of_a_test_set_leaves_every_client_a_sample",
    ),
    Mutant(
        "the_ledger_names_another_client",
        "pause_jax/analysis/ledger_table.py",
        "book.client_ids[client] if",
        "book.client_ids[client - 1] if",
        "tests/base/test_client_ids.py::test_a_sweep_and_its_ledger_name_clients",
    ),
    Mutant(
        "truth_values_are_tokens",
        "pause_jax/learning/arrays.py",
        "np.float32 if is_input else np.int32",
        "np.int32",
        "tests/learning/test_custom_data.py::test_truth_values_are_labels_and_features",
    ),
    Mutant(
        "a_loss_that_mixes_samples_is_taken",
        TASK,
        "if type(task) not in TASKS:",
        "if type(task) in TASKS:",
        "tests/learning/test_custom_model.py::test_a_loss_that_mixes_samples_is_refused",
    ),
    Mutant(
        "a_task_is_checked_with_one_form_only",
        LEARNING,
        "            form(data.y_train),\n",
        "",
        "tests/learning/test_custom_model.py::test_a_task_that_fits_one_form_of_targets_is_checked_with_another",
    ),
    Mutant(
        "a_metric_replaces_the_test_loss",
        TASK,
        'if "test_loss" in task.metrics:',
        'if "test_loss" in task.metrics[1:]:',
        "tests/learning/test_custom_model.py::test_a_metric_of_a_name_that_is_taken_is_refused",
    ),
    Mutant(
        "a_metric_of_a_taken_name_is_dropped",
        RECORDER,
        "if name in QUANTITIES and name not in METRICS:",
        "if name in METRICS and name not in QUANTITIES:",
        "tests/learning/test_custom_model.py::test_a_metric_of_a_name_that_is_taken_is_refused",
    ),
    # --- what a store knows of a sweep, what a resumed chunk goes on with, rows of a batch
    Mutant(
        "store_without_constants",
        PROVENANCE,
        'f"{self._program(value.jaxpr)} {self.of(value.consts)}"',
        "self._program(value.jaxpr)",
        CONSTANT.format("of_another_module"),
    ),
    Mutant(
        "store_without_literals",
        PROVENANCE,
        "self.of(atom.val)",
        "str(atom.aval)",
        CONSTANT.format("of_a_closure"),
    ),
    Mutant(
        "store_callback_without_variables",
        PROVENANCE,
        "self.of((function.__defaults__, values))",
        "self.of(function.__defaults__)",
        CONSTANT.format("of_a_callback"),
    ),
    Mutant(
        "store_with_addresses",
        "pause_jax/sweeps/config_summary.py",
        "without_addresses(str(value))",
        "str(value)",
        "tests/sweeps/test_store.py::test_what_custom_parts_compute_is_the_same_in_every_process",
    ),
    Mutant(
        "store_without_what_parts_say",
        JOBS,
        "{provenance.program_digest(program)} {said}",
        "{provenance.program_digest(program)}",
        "tests/sweeps/test_store.py::test_what_a_custom_part_says_of_itself_counts",
    ),
    Mutant(
        "sweep_with_a_global_of_before",
        JOBS,
        "compiled_steps.cache_clear()",
        "pass",
        "tests/sweeps/test_store.py::test_a_global_that_changes_between_two_sweeps_of_a_process_is_computed_anew",
    ),
    Mutant(
        "sweep_that_begins_with_a_global_of_before",
        JOBS,
        "compiled_beginning.cache_clear()",
        "pass",
        "tests/sweeps/test_store.py::test_a_global_that_changes_between_two_sweeps_of_a_process_is_computed_anew",
    ),
    Mutant(
        "store_of_the_first_group",
        JOBS,
        "for group in groups for own in",
        "for group in groups[:1] for own in",
        "tests/sweeps/test_store.py::test_the_custom_parts_of_every_config_count",
    ),
    Mutant(
        "resumed_without_late_updates",
        CHECKPOINT,
        "    return Point(segments, *jax.tree.unflatten(structure, placed))",
        "    point = Point(segments, *jax.tree.unflatten(structure, placed))\n"
        "    return point._replace(state=point.state._replace(stale=state.stale))",
        MIDDLE,
    ),
    Mutant(
        "resumed_without_moments_of_the_server",
        CHECKPOINT,
        "    return Point(segments, *jax.tree.unflatten(structure, placed))",
        "    point = Point(segments, *jax.tree.unflatten(structure, placed))\n"
        "    learning = point.state.learning._replace(server=state.learning.server)\n"
        "    return point._replace(state=point.state._replace(learning=learning))",
        MIDDLE,
    ),
    Mutant(
        "middle_of_a_chunk_unchecked",
        CHECKPOINT,
        'if not np.array_equal(found["digest"], _digest(leaves)):',
        "if False:",
        "tests/sweeps/test_store.py::test_a_damaged_middle_is_not_used",
    ),
    # --- what holds while a process compiles, and what is kept for the next one
    Mutant(
        "first_of_two_threads_ends_it",
        COMPILATION,
        "self._threads -= 1\n            if not self._threads:",
        "self._threads -= 1\n            if self._threads:",
        f"{COMPILATION_TEST}::test_the_cache_takes_programs_while_any_thread_compiles",
    ),
    Mutant(
        "collecting_is_switched_on",
        COMPILATION,
        "    if before[0]:\n",
        "    if True:\n",
        f"{COMPILATION_TEST}::"
        "test_python_collects_rarely_while_any_thread_compiles_and_as_before_afterwards",
    ),
    Mutant(
        "scripts_of_charts_in_another_encoding",
        PAGE,
        'bytes(kept["text"]).decode()',
        'bytes(kept["text"]).decode("latin-1")',
        "tests/analysis/test_report.py::"
        "test_the_scripts_of_charts_are_bundled_once_and_anew_if_the_file_is_damaged",
    ),
    Mutant(
        "rows_of_the_first_config",
        "pause_jax/sweeps/batch.py",
        "lambda x: x[run // num_seeds], configs",
        "lambda x: x[0 * run], configs",
        "tests/sweeps/test_rows.py::test_ties_with_deadlines_end_a_round_by_hand",
    ),
    # --- verdicts on claims
    Mutant(
        "claims_judged_one_by_one",
        "experiments/claims.py",
        "tail = (1 - CONFIDENCE) / 2 / together\n    if",
        "tail = (1 - CONFIDENCE) / 2\n    together = 1\n    if",
        "tests/experiments/test_claims.py",
    ),
    Mutant(
        "target_from_the_compared_runs",
        "experiments/pause_learning.py",
        '    family = [\n        claims.larger(\n            "choosing',
        '    target = 0.9 * min(curves.best("PAUSE"))\n'
        '    family = [\n        claims.larger(\n            "choosing',
        "tests/experiments/test_claims.py",
    ),
    Mutant(
        "always_from_two_seeds",
        "experiments/claims.py",
        "        return float(low), float(high)",
        "        return (claim.found, claim.found)",
        "tests/experiments/test_claims.py",
    ),
    Mutant(
        "not_rejected_is_confirmed",
        "experiments/claims.py",
        '"compatible" if claim.found',
        '"confirmed" if claim.found',
        "tests/experiments/test_claims.py",
    ),
    # --- a million clients, layers
    Mutant(
        "one_of_a_million_by_a_float",
        "pause_jax/bandit/search/annealing.py",
        "if num_clients > FEW:",
        "if num_clients > 2**30:",
        "tests/bandit/test_search_large.py::test_each_of_a_million_clients_is_drawn_as_often",
    ),
    Mutant(
        "running_statistics_too_slow",
        NORMS,
        "MOMENTUM = 0.9",
        "MOMENTUM = 0.99",
        LAYERS_TEST + "test_running_statistics_are_the_textbooks_and_leave_out_rows_that_fill_up",
    ),
    Mutant(
        "groups_over_the_batch_of_channels",
        NORMS,
        "GROUPS if x.ndim > 2 else 1",
        "1",
        LAYERS_TEST + "test_group_norm_standardises_groups_of_channels_of_one_sample",
    ),
    Mutant(
        "a_norm_whose_gradient_forgets_the_mean",
        NORMS,
        "        - _rows(shift * entered, x)\n",
        "",
        NORMS_TEST + "test_values_and_gradients_are_flaxs",
    ),
    Mutant(
        "a_norm_whose_gradient_forgets_the_spread",
        NORMS,
        "root * root / count",
        "root / count",
        NORMS_TEST + "test_values_and_gradients_are_flaxs",
    ),
    Mutant(
        "rows_that_fill_up_enter_the_mean",
        NORMS,
        "jnp.where(weight[:, None] > 0, sums, 0)",
        "sums",
        NORMS_TEST + "test_the_statistics_are_those_of_the_rows_that_count",
    ),
    # --- what a result is turned into
    Mutant(
        "interval_of_one_degree_too_many",
        PAIRED,
        "stdtrit(number - 1,",
        "stdtrit(number,",
        "tests/analysis/test_paired.py::test_two_configs_have_scipys_paired_interval",
    ),
    Mutant(
        "unnoised_counts_as_private",
        COMPARISON,
        ' & (result.unnoised == "")',
        "",
        "tests/analysis/test_comparison.py::test_private_configs_are_compared_with_the_best_of_them",
    ),
    Mutant(
        "broken_configs_are_judged",
        COMPARISON,
        "result.first_broken_round <= 0",
        "result.first_broken_round >= -1",
        "tests/analysis/test_comparison.py::test_a_config_that_broke_its_contract_is_no_measure",
    ),
    Mutant(
        "clock_curve_of_the_seeds_left",
        CURVES,
        "mean.where(seconds.notnull())",
        "mean",
        CURVES_TEST + "test_a_curve_is_the_mean_over_seeds_as_far_as_all_seeds_go",
    ),
    Mutant(
        "round_curve_of_the_seeds_left",
        CURVES,
        'mean.where(values.notnull().all("seed"))',
        "mean",
        CURVES_TEST + "test_a_curve_is_the_mean_over_seeds_as_far_as_all_seeds_go",
    ),
    Mutant(
        "hidden_though_elsewhere",
        CURVES,
        "np.stack([curve.x, curve.mean]).tobytes()",
        "curve.mean.tobytes()",
        CURVES_TEST + "test_curves_hide_each_other_if_equal_in_place_and_height",
    ),
    Mutant(
        "loss_of_the_last_place",
        METRICS,
        "result.test_loss.isel(eval_round=last.clip(0))",
        "result.test_loss.isel(eval_round=-1)",
        "tests/analysis/test_metrics.py::test_final_loss_is_that_of_each_configs_last_round",
    ),
    Mutant(
        "gigabytes_of_updates_alone",
        METRICS,
        "(result.downloaded + result.uploaded)",
        "(result.uploaded + result.uploaded)",
        "tests/analysis/test_metrics.py::test_what_is_sent_is_models_and_updates",
    ),
    Mutant(
        "decade_from_a_round_late",
        REGRET,
        "mean[n // 10 - 1]",
        "mean[n // 10]",
        "tests/analysis/test_regret.py::test_decade_ratios_of_known_curves",
    ),
    Mutant(
        "bound_of_pause_as_bsfls",
        REGRET,
        "+ 1 + 2 * math.pi**2 / 3",
        "+ 1 + math.pi**2 / 3",
        "tests/analysis/test_regret.py::test_the_bounds_by_hand",
    ),
    Mutant(
        "best_loss_is_the_worst",
        SUMMARY,
        'result.test_loss.min("eval_round")',
        'result.test_loss.max("eval_round")',
        SUMMARY_TEST,
    ),
    Mutant(
        "best_accuracy_is_the_last",
        SUMMARY,
        'result.test_accuracy.max("eval_round")',
        "result.test_accuracy.isel(eval_round=-1)",
        SUMMARY_TEST,
    ),
    Mutant(
        "all_seeds_reached_the_target",
        SUMMARY,
        "int(to_target.sel(config=config).notnull().sum())",
        "int(to_target.sel(config=config).size)",
        SUMMARY_TEST,
    ),
    # --- ledger
    Mutant(
        "delta_without_a_release",
        "pause_jax/analysis/ledger.py",
        "int(updates.max()) * float",
        "int(counts.max()) * float",
        "tests/analysis/test_accounting.py::test_participations_after_the_end_of_a_budget_release_nothing",
    ),
    Mutant(
        "answers_are_no_releases",
        "pause_jax/analysis/ledger.py",
        "updates + (queried if",
        "updates + (0 * queried if",
        "tests/analysis/test_accounting.py::test_losses_void_the_guarantee_and_count_as_releases",
    ),
    Mutant(
        "seeds_written_as_clients",
        "pause_jax/analysis/ledger_table.py",
        "where if len(where) == 2 else",
        "where[::-1] if len(where) == 2 else",
        "tests/analysis/test_accounting.py::test_each_line_of_the_file_is_of_its_seed_and_client",
    ),
    Mutant(
        "times_chosen_of_the_idlest",
        "pause_jax/analysis/ledger_table.py",
        "str(book.participations.max())",
        "str(book.participations.min())",
        "tests/analysis/test_summary.py::test_the_ledgers_table_is_about_the_busiest_client_of_all_seeds",
    ),
    Mutant(
        "epsilon_of_the_participation_before",
        SELECTOR,
        "self._epsilon(self.counts + 1)",
        "self._epsilon(self.counts)",
        SELECTOR_TEST + "::test_each_release_has_the_epsilon_of_its_clients_own_participation",
    ),
    Mutant(
        "losses_exchanged",
        "pause_jax/deploy/selector/reports.py",
        '("loss", reports.loss), ("square_loss", reports.square_loss)',
        '("square_loss", reports.loss), ("loss", reports.square_loss)',
        SELECTOR_TEST + "::test_the_policy_reads_each_loss_as_what_it_is",
    ),
    # --- policies
    Mutant(
        "context_of_the_unnamed_is_learnt",
        "pause_jax/policies/rbcs_f.py",
        "jnp.where(active[:, None], state.context[clients], 0.0)",
        "state.context[clients]",
        SELECTOR_TEST + "::test_of_who_is_not_named_no_latency_is_learnt_from_its_context_either",
    ),
    Mutant(
        "window_rounded_down",
        "pause_jax/policies/oort.py",
        "jnp.ceil(self.window * number",
        "jnp.floor(self.window * number",
        "tests/policies/test_oort.py::"
        "test_the_explored_are_drawn_in_proportion_to_their_prior_within_the_window",
    ),
    Mutant(
        "pacer_looks_a_time_late",
        "pause_jax/policies/oort.py",
        "(round >= 2 * step)",
        "(round > 2 * step)",
        "tests/policies/test_oort.py::test_pacer",
    ),
    Mutant(
        "accepted_at_the_deadline",
        "pause_jax/policies/fedcs.py",
        "end < deadline",
        "end <= deadline",
        "tests/policies/test_fedcs.py::test_a_hand_made_instance",
    ),
    Mutant(
        "zero_updates_at_a_right_angle",
        "pause_jax/policies/clustered.py",
        "jnp.arccos(jnp.clip(cosine, -1.0, 1.0)), 0.0)",
        "jnp.arccos(jnp.clip(cosine, -1.0, 1.0)), jnp.pi / 2)",
        "tests/policies/test_clustered.py::test_distances_are_numpys",
    ),
    # --- data, cohorts, search, record
    Mutant(
        "a_label_that_has_run_out_is_reserved",
        PARTITION,
        "jnp.clip(count[dominant] - wanted_before, 0, wanted)",
        "jnp.clip(count[dominant], 0, wanted)",
        "tests/learning/test_partition.py::"
        "test_what_is_reserved_is_of_the_dominant_label_alone_though_it_runs_out",
    ),
    Mutant(
        "all_labels_in_the_same_shares",
        "pause_jax/learning/label_skew.py",
        "concentration, (num_classes,))",
        "concentration, (1,)).repeat(num_classes, axis=0)",
        "tests/learning/test_custom_data.py::"
        "test_dirichlet_shares_have_their_moments_and_a_small_alpha_few_labels",
    ),
    Mutant(
        "last_slot_lost_in_batches",
        COHORT,
        "jnp.minimum(jnp.arange(num_batches * batch), num_slots - 1)",
        "jnp.arange(num_batches * batch) % (num_slots - 1)",
        "tests/learning/test_local_training.py::test_each_slot_is_trained_once_and_for_all_its_steps",
    ),
    Mutant(
        "no_gap_between_infinite_energies",
        "pause_jax/bandit/search/annealing.py",
        "jnp.where(jnp.isinf(best), rest, 0.0)",
        "0.0",
        "tests/bandit/test_search_annealing.py::test_between_infinite_energies_the_gap_is_one_of_weights",
    ),
    Mutant(
        "genie_of_the_first_round",
        SCORE,
        "context.speed_at(round)",
        "context.speed_at(jnp.ones_like(round))",
        "tests/analysis/test_fleet.py::test_the_genie_of_a_changing_world_has_no_regret",
    ),
    Mutant(
        "evaluated_at_the_start_of_the_round",
        QUANTITIES,
        'at each evaluation."""\n    return r.after.clock',
        'at each evaluation."""\n    return r.before.clock',
        "tests/run/test_rounds.py::test_evaluated_rounds_include_the_last",
    ),
    Mutant(
        "rules_of_the_last_round",
        STATE,
        "is_first = (health.first_broken == 0) & (rules > 0)",
        "is_first = rules > 0",
        "tests/run/test_broken_parts.py::"
        "test_what_is_named_was_broken_in_the_first_bad_round_though_others_follow",
    ),
    # --- rivals that read updates, losses or the server's samples
    Mutant(
        "divfl_takes_all_updates_for_received",
        DIVFL,
        "seen=jnp.zeros(num_clients, bool),",
        "seen=jnp.ones(num_clients, bool),",
        f"{DIVFL_TEST}::test_everybody_is_received_once_before_anybody_is_compared",
    ),
    Mutant(
        "divfl_weighs_as_the_published_program",
        DIVFL,
        'default="neighbours"',
        'default="data"',
        f"{DIVFL_TEST}::test_a_run_of_select_is_the_oracles_over_those_who_are_available",
    ),
    Mutant(
        "divfl_takes_the_worst_cover",
        DIVFL,
        "best = order[jnp.argmin(cost[order])]",
        "best = order[jnp.argmax(jnp.where(left, cost, -jnp.inf)[order])]",
        f"{DIVFL_TEST}::test_the_choice_is_the_greedy_one_and_near_the_best",
    ),
    Mutant(
        "divfl_forgets_who_covers_already",
        DIVFL,
        "after = jnp.minimum(nearest[:, None], distance)",
        "after = distance",
        f"{DIVFL_TEST}::test_the_choice_is_the_greedy_one_and_near_the_best",
    ),
    Mutant(
        "divfl_renews_rows_alone",
        DIVFL,
        ".at[clients].set(rows).at[:, clients].set(rows.T)",
        ".at[clients].set(rows)",
        f"{DIVFL_TEST}::test_only_the_received_renew_their_update_and_its_distances",
    ),
    Mutant(
        "divfl_counts_the_chosen_twice",
        DIVFL,
        "covered = known & ~chosen &",
        "covered = known &",
        f"{DIVFL_TEST}::test_weights_are_shares_of_nearest_neighbours",
    ),
    Mutant(
        "an_argument_for_the_host_is_copied_whole",
        HOST,
        "PIECE_BYTES = 64 * 1024",
        "PIECE_BYTES = 1 << 30",
        "tests/policies/test_host.py",
    ),
    Mutant(
        "pieces_are_handed_over_one_short",
        HOST,
        "for _ in range(count)] for count in counts)",
        "for _ in range(count)][: max(count - 1, 1)] for count in counts)",
        "tests/policies/test_host.py::test_arguments_arrive_whole",
    ),
    Mutant(
        "a_shuffled_order_begins_by_the_numbers",
        BASELINES,
        "distance = (place[selection.clients] - cursor) % num_clients",
        "distance = (selection.clients - cursor) % num_clients",
        "tests/policies/test_sampling.py::"
        "test_round_robin_in_a_shuffled_order_has_everyone_once_and_mixes_the_numbers",
    ),
    Mutant(
        "hics_counts_clusters_in_a_cohort",
        HICS_FL,
        "alive = jnp.zeros(taste.shape, bool).at[label].max(left)",
        "alive = jnp.zeros(taste.shape, bool).at[label].max(left & (label < count))",
        f"{HICS_TEST}::test_the_draws_have_the_chances_of_the_oracle",
    ),
    Mutant(
        "hics_ward_of_rows",
        "pause_jax/policies/clustered.py",
        'linkage(squareform(distance, checks=False), method="ward")',
        'linkage(distance, method="ward")',
        f"{HICS_TEST}::test_clusters_are_wards_and_not_those_of_the_rows",
    ),
    Mutant(
        "hics_reads_weights_for_the_bias",
        HICS_FL,
        "shown = layer[..., 0] if",
        "shown = layer[..., 1] if",
        f"{HICS_TEST}::test_the_entropy_is_that_of_the_output_layers_bias",
    ),
    Mutant(
        "hics_is_as_greedy_at_the_end",
        HICS_FL,
        "(round - 1) / context.num_rounds, 0.0",
        "0 * round / context.num_rounds, 0.0",
        f"{HICS_TEST}::test_balanced_clients_are_preferred_and_less_so_towards_the_end",
    ),
    Mutant(
        "hics_leaves_out_entropies",
        HICS_FL,
        "apart += self.entropy_weight * jnp.abs(",
        "apart += 0 * jnp.abs(",
        f"{HICS_TEST}::test_balanced_clients_are_preferred_and_less_so_towards_the_end",
    ),
    Mutant(
        "hics_means_count_the_unknown",
        HICS_FL,
        "jnp.where(counted, each, 0.0)",
        "each",
        f"{HICS_TEST}::test_the_mean_entropy_of_a_cluster_is_over_the_known",
    ),
    Mutant(
        "hics_stores_what_was_lost",
        HICS_FL,
        "seen=store_active(state.seen, clients, received, received),",
        "seen=state.seen.at[clients].max(selection.active),",
        f"{HICS_TEST}::test_everybody_is_received_once_also_if_the_cohort_does_not_divide_the_clients",
    ),
    Mutant(
        "output_layer_by_rows",
        LEARNER,
        'layer["kernel"].T], axis=1)',
        'layer["kernel"].reshape(layer["bias"].size, -1)], axis=1)',
        f"{OUTPUT_TEST}::test_the_places_are_the_bias_and_the_incoming_weights_of_each_output",
    ),
    Mutant(
        "fedcor_asks_at_no_cost",
        FEDCOR,
        "lambda latency: part * latency",
        "lambda latency: 0 * part * latency",
        f"{FEDCOR_TEST}::test_questions_cost_time_and_release_losses",
    ),
    Mutant(
        "fedcor_fits_planned_cohorts",
        FEDCOR,
        "answered=answered & self._explores(state.round + 1),",
        "answered=answered,",
        f"{FEDCOR_TEST}::test_the_changes_after_random_cohorts_are_fitted_as_in_the_oracle",
    ),
    Mutant(
        "fedcor_counts_the_absent",
        FEDCOR,
        "x = jnp.where(observed[None, :], embedding, 0.0)",
        "x = embedding",
        f"{FEDCOR_TEST}::test_the_likelihood_is_that_of_the_whole_matrix_and_so_is_its_gradient",
    ),
    Mutant(
        "fedcor_sums_over_nobody_chosen",
        FEDCOR,
        "return jnp.where(taken, after, sigma), jnp.where(",
        "return sigma, jnp.where(",
        f"{FEDCOR_TEST}::test_clients_are_chosen_greedily_each_given_those_before",
    ),
    Mutant(
        "fedcor_never_forgets_its_choices",
        FEDCOR,
        "taken=jnp.where(fits, 0.0, state.taken),",
        "taken=state.taken,",
        f"{FEDCOR_TEST}::test_random_rounds_are_random_and_the_others_the_oracles",
    ),
    Mutant(
        "fedcor_discounts_nothing",
        FEDCOR,
        "weight = self.discount ** (",
        "weight = 0 * self.discount + 1.0 ** (",
        f"{FEDCOR_TEST}::test_the_changes_after_random_cohorts_are_fitted_as_in_the_oracle",
    ),
    Mutant(
        "shapley_without_the_full_coalition",
        GREEDYFED,
        "return jnp.zeros(size).at[order].set(added)",
        "return jnp.zeros(size).at[order[:-1]].set(added[:-1])",
        f"{GREEDY_TEST}::test_values_are_those_of_the_permutations_and_truncated",
    ),
    Mutant(
        "shapley_averages_by_the_old_count",
        GREEDYFED,
        "count, old = state.times[clients] + 1,",
        "count, old = state.round + 1 + 0 * clients,",
        f"{GREEDY_TEST}::test_values_are_averaged_over_the_rounds_of_each_client",
    ),
    Mutant(
        "shapley_of_nobody_is_no_model",
        EVALUATION,
        "restored(params + move)",
        "restored(move)",
        f"{GREEDY_TEST}::test_the_server_measures_the_model_before_the_round_plus_the_weighted_updates",
    ),
    Mutant(
        "held_samples_are_scored",
        LEARNING,
        "scored=slice(data.y_test.shape[0] - self.validation),",
        "scored=slice(data.y_test.shape[0]),",
        f"{GREEDY_TEST}::test_the_server_measures_the_model_before_the_round_plus_the_weighted_updates",
    ),
    Mutant(
        "shapley_truncates_nothing",
        GREEDYFED,
        "reached = jnp.abs(last - before) < tolerance",
        "reached = jnp.abs(last - before) < 0 * tolerance",
        f"{GREEDY_TEST}::test_values_are_those_of_the_permutations_and_truncated",
    ),
    Mutant(
        "greedyfed_counts_what_was_lost",
        GREEDYFED,
        "received = selection.active & observation.received",
        "received = selection.active",
        f"{GREEDY_TEST}::test_values_are_averaged_over_the_rounds_of_each_client",
    ),
    # --- kinds of devices, loading, configs as text
    Mutant(
        "device_not_in_the_table",
        "pause_jax/learning/device_choice.py",
        "CHOICES.get(jax.default_backend(), ELSEWHERE)",
        "ELSEWHERE",
        "tests/learning/test_device_choice.py",
    ),
    Mutant(
        "gpu_products_of_anything",
        "pause_jax/learning/convolution.py",
        "strides == _ONES and padding == _NO_PADS and patches",
        "patches",
        "tests/learning/test_device_choice.py",
    ),
    Mutant(
        "sweep_is_a_package",
        "pause_jax/__init__.py",
        "del _room, sweep",
        "del _room",
        "tests/test_loading.py::test_sweep_is_the_function_whatever_was_imported_before",
    ),
    Mutant(
        "help_imports_all",
        "pause_jax/cli/main.py",
        "program(words[:1])()",
        "program()()",
        "tests/test_loading.py::test_help_needs_no_jax",
    ),
    Mutant(
        "toml_of_a_control_character",
        "pause_jax/config/toml_text.py",
        '.replace("\\x7f", "\\\\u007f")',
        "",
        "tests/config/test_toml_text.py",
    ),
    Mutant(
        "parts_by_name",
        "benchmarks/parts.py",
        'found.sort(key=lambda path: int(path.stem.split("-")[-3]))',
        "pass",
        "tests/test_device.py::test_a_data_set_comes_back_from_its_parts",
    ),
    Mutant(
        "steps_taken_again",
        "benchmarks/device.py",
        "if step.name in done:",
        "if False:",
        "tests/test_device.py::test_a_piece_goes_on_where_it_stopped",
    ),
    Mutant(
        "cohorts_by_their_order",
        "benchmarks/pieces.py",
        "np.sort(here, axis=1)",
        "here",
        "tests/test_device.py::test_cohorts_that_differ_are_seen",
    ),
]

CASE = "tests/run/test_whole_round.py::test_a_run_is_what_algorithm_1_says[{}]"
ROOT = pathlib.Path(__file__).parents[1]
WORKERS = os.cpu_count() or 1


def main(names: list[str]) -> int:
    """Run the named mutants, or all; returns the exit status."""
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        return fail(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    lost = [m for m in chosen if (ROOT / m.file).read_text().count(m.old) != 1]
    for mutant in lost:
        print(f"LOST      {mutant.name}: its text does not occur once in {mutant.file}")
    chosen = [mutant for mutant in chosen if mutant not in lost]
    began = time.monotonic()
    copies: queue.SimpleQueue[pathlib.Path] = queue.SimpleQueue()

    def in_a_copy(mutant: Mutant) -> tuple[Mutant, int, float, str]:
        copy = copies.get()
        try:
            return mutant, *planted(copy, mutant)
        finally:
            copies.put(copy)

    survived = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as workers:
        for number in range(WORKERS):
            copies.put(copied(pathlib.Path(folder) / str(number) / "copy"))
        first = copies.get()
        status, seconds, output = run(first, *sorted({target(mutant) for mutant in chosen}))
        copies.put(first)
        if status:
            return fail(f"the tests fail without any fault:\n{output}")
        print(f"{'passed':10}{seconds:4.0f} s  without any fault", flush=True)
        for mutant, status, seconds, output in workers.map(in_a_copy, chosen):
            if status not in (0, 1):
                return fail(f"{mutant.name}: the tests could not run:\n{output}")
            if status == 0:
                survived.append(mutant)
            verdict = "caught" if status else "SURVIVED"
            line = f"{verdict:10}{seconds:4.0f} s  {mutant.name:36}{mutant.test:20}{why(output)}"
            print(line[:120].rstrip(), flush=True)
    caught, seconds = len(chosen) - len(survived), time.monotonic() - began
    print(f"{caught} caught, {len(survived)} survived, {len(lost)} lost, {seconds:.0f} s")
    return int(bool(survived or lost))


def copied(folder: pathlib.Path) -> pathlib.Path:
    """A copy of the files that git knows or would add, as they are now."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    paths = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for path in filter(None, paths.split("\0")):
        if (ROOT / path).is_file():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes((ROOT / path).read_bytes())
    return folder


def target(mutant: Mutant) -> str:
    """What pytest is told to run."""
    return mutant.test if "/" in mutant.test else CASE.format(mutant.test)


def planted(copy: pathlib.Path, mutant: Mutant) -> tuple[int, float, str]:
    """The test of a mutant, in the copy, which is as before afterwards."""
    path = copy / mutant.file
    right = path.read_text()
    path.write_text(right.replace(mutant.old, mutant.new))
    try:
        return run(copy, target(mutant))
    finally:
        path.write_text(right)


def run(copy: pathlib.Path, *tests: str) -> tuple[int, float, str]:
    """(pytest's exit status, seconds, output) of tests in the copy."""
    # No bytecode: a file that is replaced within a second would be taken for the old one.
    environment = {
        "PAUSE_JAX_SHARED": str(ROOT.parent / "shared"),
        **os.environ,
        **{"PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "--tb=short", *tests]
    began = time.monotonic()
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    return done.returncode, time.monotonic() - began, done.stdout + done.stderr


def why(output: str) -> str:
    """What differed, in brief: the recorded quantity, else the first error."""
    errors = [line[1:].strip() for line in output.splitlines() if line.startswith("E ")]
    quantities = [error for error in errors if error.startswith("['")]
    return (quantities or errors or [""])[0]


def fail(message: str) -> int:
    print(message)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
