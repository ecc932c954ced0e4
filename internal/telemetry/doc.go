// Package telemetry turns what the parts of Tandem report into Prometheus
// metrics. It is the only importer of the metrics library: the parts take small
// structs of functions, declared by themselves, and never learn who listens.
// Telemetry receives copies and returns nothing, so it decides nothing.
//
// Names, labels and buckets are vLLM's where vLLM has the metric, so that
// dashboards and autoscalers made for it work; names beginning with tandem_ are
// ours.
package telemetry
