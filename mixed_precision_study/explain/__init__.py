"""Why a training takes the time that it takes. These modules take a Trainer."""
