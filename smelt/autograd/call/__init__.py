"""What happens at a call of the compiled programs: inputs, outputs, gradients and second derivatives as in eager."""
