import { isPrinting } from "../print";

/** Size a canvas for the screen, wipe it, and return its context in CSS pixels. */
export function clear(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  const same = canvas.width === w && canvas.height === h;
  const context = canvas.getContext("2d")!;
  context.setTransform(1, 0, 0, 1, 0, 0);
  // Another size wipes the canvas, too. On paper, what clearRect wipes would be white and cover what lies below the canvas.
  if (same && !isPrinting()) context.clearRect(0, 0, w, h);
  else {
    canvas.width = 0;
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
