"""Why a training takes its time and memory. These modules take a Trainer."""
