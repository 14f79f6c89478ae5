"""Where models run."""

from tests.docs.behaviour.modules import (
    AUTO_PLACEMENT,
    CARD_PLAN,
    CLUSTER,
    COMMANDS,
    COPIED,
    PLAN,
    SCALING,
)

TESTS: dict[str, tuple[str, ...]] = {
    "With `--placement auto` (the default)": (
        PLAN + "test_auto_isolates_what_has_a_reason_and_packs_the_rest",
        PLAN + "test_auto_isolates_what_scales_or_asks_for_nodes",
    ),
    "All others share one process": (PLAN + "test_auto_isolates_what_has_a_reason_and_packs_the_rest",),
    "So do Python models, and those with a library": (
        AUTO_PLACEMENT + "test_python_models_that_find_no_cpus_are_packed",
        AUTO_PLACEMENT + "test_python_models_leave_half_of_the_memory",
    ),
    "but those that set `eagleray.memory_bytes` wait": (AUTO_PLACEMENT + "test_what_is_to_be_alone_waits_for_cpus",),
    "Where several are loaded at once, or deployed anew": (
        "deployments/control/test_full_cluster.py::test_models_that_change_together_stay_where_they_are_each",
        "deployments/control/test_full_cluster.py::test_models_stay_where_they_are_when_they_are_deployed_anew",
        "repository_loader/test_auto_placement.py::test_a_model_on_a_gpu_finds_cpus_wherever_its_name_stands",
    ),
    "`eagleray plan` prints the placement": (COMMANDS + "test_plan_prints_the_deployments_of_the_examples",),
    "An embedded model is READY when an ingress serves it": (
        "deployments/control/test_model_table.py::"
        "test_an_ingress_that_cannot_load_an_embedded_model_takes_it_from_no_other",
        "e2e/test_uneven_ingresses.py::test_an_embedded_model_serves_where_it_has_loaded_and_says_where_it_has_not",
    ),
    "The index and the log say then where": (
        "deployments/control/test_model_table.py::test_an_ingress_that_has_gone_counts_no_more",
        "e2e/test_uneven_ingresses.py::test_an_embedded_model_serves_where_it_has_loaded_and_says_where_it_has_not",
    ),
    "One that has yet to load it says LOADING": (
        "app/service/test_metadata.py::test_the_index_says_what_became_here_of_an_embedded_model_that_others_serve",
    ),
    "Its load is answered when every ingress": (
        "e2e/test_uneven_ingresses.py::test_an_embedded_model_is_ready_at_all_ingresses_when_its_load_is_answered",
        "app/ingress/test_cluster_control.py::test_a_load_waits_for_no_model_that_failed_here",
        "deployments/control/test_model_table.py::test_what_became_of_a_load_is_known_once_all_ingresses_have_told",
    ),
    "What `eagleray plan --num-gpus N` prints": (
        "e2e/test_gpus.py::test_replicas_have_the_resources_that_were_planned",
    ),
    "Without the flag all three": (
        "e2e/test_gpus.py::test_replicas_have_the_resources_that_were_planned",
        "app/cli/test_local_facts.py::test_gpus_are_those_that_ray_would_find",
        "app/cli/test_local_facts.py::test_plan_and_validate_are_for_the_gpus_of_the_machine",
    ),
    "Each number in `gpus` is a card of its own": ("e2e/test_gpus.py::test_listed_gpus_are_different_cards",),
    "What does not fit on a card": (CARD_PLAN + "test_a_gpu_is_not_promised_twice",),
    "GPU and CPU groups of one model are one version": (
        "e2e/test_gpus.py::test_every_kind_of_group_serves",
        "deployments/lane/test_choice.py::test_gpus_come_first_and_the_cpu_gets_what_they_have_no_idle_instance_for",
    ),
    "The CPU gets what this ingress has no idle GPU": (
        "deployments/lane/test_choice.py::test_gpus_come_first_and_the_cpu_gets_what_they_have_no_idle_instance_for",
    ),
    "When one of the groups failed to load": (
        "e2e/test_gpus.py::test_a_version_that_serves_from_its_cpu_group_says_why_its_gpu_group_does_not",
    ),
    "So does a `KIND_AUTO` model that is on the CPU": (
        "deployments/control/test_desired_state.py::"
        "test_models_that_wait_are_placed_when_the_cluster_has_what_they_need",
    ),
    "A model that waits for GPUs or CPUs": (
        CLUSTER + "test_a_model_that_waits_for_a_gpu_is_placed_when_a_node_brings_one",
        CARD_PLAN + "test_what_is_placed_stays_when_the_cluster_grows",
        PLAN + "test_tells_what_the_cluster_can_never_hold",
    ),
    "Ray's autoscaler, where there is one": (
        CARD_PLAN + "test_what_a_grown_cluster_would_hold_is_asked_for",
        CLUSTER + "test_nodes_are_asked_for_as_long_as_a_model_waits_for_them",
        CLUSTER + "test_a_model_that_waits_for_a_gpu_is_placed_when_a_node_brings_one",
    ),
    "A load that a client asks for waits for no node": (
        "deployments/control/test_model_commands.py::test_a_load_for_which_there_is_no_room_fails_and_asks_for_no_node",
    ),
    "That no node alone has what a replica needs": (
        "deployments/control/test_status_reader.py::test_a_model_for_whose_replica_there_is_no_room_says_what_it_needs",
    ),
    "A model that has lost its last replica says it": (
        "e2e/test_cluster.py::test_a_model_that_waits_for_a_gpu_is_placed_when_a_node_brings_one",
        "deployments/control/test_status_reader.py"
        "::test_a_model_whose_replicas_do_not_come_up_again_has_the_reason_in_the_index",
    ),
    "No load of another model waits while": (
        "deployments/control/test_waiting_models.py::test_a_load_waits_for_no_model_that_is_read_again",
    ),
    "A fifth of each GPU's memory stays free": (CARD_PLAN + "test_part_of_a_card_stays_free",),
    "`eagleray.num_gpus` says another share": (PLAN + "test_parameters_of_the_model_come_first",),
    "A model with `eagleray.autoscaling.max_replicas`": (
        "repository_loader/test_autoscaling.py::test_replicas_follow_from_the_load",
        "repository_loader/test_autoscaling.py::test_parameters_are_read",
    ),
    "More come at once": (
        f"{SCALING}test_second_replica_serves_soon_after_the_load_rises_and_goes_after_it_has_fallen",
        "deployments/control/test_autoscaler.py::test_more_replicas_at_once_and_fewer_after_the_delay",
        "repository_loader/test_autoscaling.py::test_replicas_stay_as_long_as_a_sequence_may_be_idle",
    ),
    "With `min_replicas` 0": (
        f"{SCALING}test_first_request_waits_for_a_replica_where_there_is_none",
        "deployments/control/test_autoscaler.py::test_requests_that_are_answered_before_anybody_looks_wake_and_keep_a_replica",
    ),
    "So does the step of an": (f"{SCALING}test_so_does_the_first_request_to_an_ensemble_of_it",),
    "It is ready all the same": (
        f"{SCALING}test_first_request_waits_for_a_replica_where_there_is_none",
        "deployments/lane/test_waiting_calls.py::test_waiting_is_bounded_in_number_bytes_and_time",
        "e2e/control/test_without_replicas.py::test_a_load_waits_for_a_first_replica_and_a_request_does_until_the_model_is_unloaded",
    ),
    "A load or reload starts one": (
        "e2e/control/test_without_replicas.py::test_a_load_waits_for_a_first_replica_and_a_request_does_until_the_model_is_unloaded",
        "e2e/control/test_without_replicas.py::test_a_reload_tries_a_model_that_has_no_replica",
        "e2e/control/test_without_replicas.py::test_a_replica_loads_to_its_end_though_who_waited_for_it_is_gone",
        "deployments/control/test_scaler.py::test_nothing_is_scaled_to_none_before_its_first_replica_has_started",
    ),
    "As long as one after the other fails to start": (
        "e2e/control/test_without_replicas.py::test_a_model_whose_replicas_fail_to_start_has_the_reason_and_is_tried_while_somebody_asks",
        "app/service/test_routing.py::test_a_version_that_had_no_replica_is_not_ready_while_none_starts_and_its_requests_wait",
        "deployments/control/test_scaler.py::test_what_fails_to_start_again_and_again_is_known_and_scaled_to_none_when_nobody_asks",
    ),
    "`eagleray.accelerator_type` and `eagleray.node_labels` say": (
        CARD_PLAN + "test_needs_of_nodes_reach_the_deployments",
        CLUSTER + "test_a_model_that_waits_for_a_gpu_is_placed_when_a_node_brings_one",
    ),
    "A card that a model of one kind": (CARD_PLAN + "test_a_card_belongs_to_one_kind_of_node",),
    "An ensemble whose steps all run in other processes": (
        COPIED + "test_no_request_waits_for_its_replica",
        COPIED + "test_requests_are_counted_once",
        COPIED + "test_a_reload_holds_in_every_ingress_when_it_is_answered",
        "repository_loader/test_copied_ensembles.py::test_an_ensemble_whose_steps_run_elsewhere_is_copied",
        "app/service/test_routing.py::test_a_copy_is_asked_only_while_it_is_one_of_what_the_directory_says",
    ),
    "That replica is for models that call": (COPIED + "test_a_model_reaches_its_replica",),
    "An ensemble that sets `eagleray.placement`": (
        "repository_loader/test_copied_ensembles.py::test_an_ensemble_with_something_of_its_own_is_not",
        "repository_loader/test_copied_ensembles.py::test_an_ensemble_with_a_bound_of_its_own_is_not",
    ),
}
